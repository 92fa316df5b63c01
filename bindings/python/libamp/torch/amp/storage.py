# SPDX-License-Identifier: Apache-2.0
"""Blocks of libamp's memory as torch tensors. The extension calls these functions in initialize, in the first bracket
and in shutdown."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

_DEVICES = {1: "cpu", 2: "cuda"}


def over(block: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Returns a tensor of `dtype` on the block's memory, with the shape and strides of `like`."""
    empty = torch.empty(0, dtype=dtype, device=block.device)
    return empty.set_(block.untyped_storage(), 0, like.shape, like.stride())


def alloc(n_bytes: int, device_type: int, index: int, served: torch.device | None = None) -> Tensor:
    """Returns a block, never empty. served: torch's own operators work on the device."""
    if served is not None:
        return torch.empty(n_bytes, dtype=torch.uint8, device=served)
    device = torch.device(_DEVICES[device_type]) if device_type == 1 else torch.device(_DEVICES[device_type], index)
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


def retire(block: Tensor) -> None:
    """Releases a GPU block that the current stream may still use."""
    block.record_stream(torch.cuda.current_stream(block.device))


def number(capsule: Any) -> Tensor:
    """Returns a float32 in the library's memory as a tensor: a scale, or a flag to skip."""
    return dlpack.from_dlpack(capsule)


def swap(tensor: Tensor, block: Tensor, dtype: torch.dtype) -> Tensor:
    """Puts `block` under the tensor with the new type. Returns a tensor with the old memory."""
    with torch.no_grad():
        old, grad = tensor.data, tensor.grad
        tensor.grad = None
        tensor.data = over(block, dtype, tensor) if block.dtype is torch.uint8 else block
        if grad is not None:
            tensor.grad = grad.to(dtype)
    return old


def master(block: Tensor, param: Tensor) -> torch.nn.Parameter:
    """Returns the tensor that the optimizer has instead of a 16-bit parameter."""
    data = over(block, torch.float32, param) if block.dtype is torch.uint8 else block
    return torch.nn.Parameter(data, requires_grad=param.requires_grad)


def gradient(block: Tensor, of: Tensor) -> Tensor:
    """Returns the FP32 gradient of a master."""
    return over(block, torch.float32, of)


def values_of(grad: Tensor) -> Tensor:
    """Returns a copy of a gradient that is a view, while a bracket sets it aside."""
    return grad.detach().clone()


def join(param: Tensor, view: Tensor) -> None:
    """Restores such a gradient to the view. A gradient that backward put there itself (DDP with
    gradient_as_bucket_view) remains."""
    grad = param.grad
    if grad is None or grad is view or grad.data_ptr() == view.data_ptr():
        return
    with torch.no_grad():
        view.copy_(grad)
    param.grad = view


def bring_home(block: Tensor, master: Tensor, param: Tensor) -> None:
    """Restores the library's memory of a master to which a script gave other memory (`p.data = x`), with the values of
    x and the layout of its parameter."""
    if master.shape != param.shape:
        raise RuntimeError(
            f"the master of a parameter of shape {tuple(param.shape)} was given data of shape {tuple(master.shape)}"
        )
    with torch.no_grad():
        values = master.clone()  # they may be in the block, in another order
        if block.dtype is torch.uint8:
            home = over(block, torch.float32, param)
        else:  # the parameter's own FP32 tensor: so it will be given back
            home = block.as_strided_(param.shape, param.stride()).detach()
        master.data = home.copy_(values)


@torch.no_grad()
def move_gradients(block: Tensor, old: Tensor | None, master: Tensor, param: Tensor) -> Tensor | None:
    """Moves gradient and master gradient to the new layout of a parameter. Returns the new tensor on the library's
    block, with the elements of `old`."""
    if param.grad is not None and param.grad.stride() != param.stride():
        param.grad.data = torch.empty_like(param, dtype=param.grad.dtype).copy_(param.grad)
    if old is None:
        return None
    values = old.clone()
    moved = gradient(block, master)
    moved.copy_(values)
    if master.grad is old or (master.grad is not None and master.grad.data_ptr() == old.data_ptr()):
        master.grad = moved
    return moved


def lay_out(tensor: Tensor, like: Tensor, dtype: torch.dtype) -> None:
    """Casts the tensor in place, in the layout of `like`."""
    data = torch.empty_like(like, dtype=dtype, requires_grad=False)
    data.copy_(tensor.detach())
    tensor.data = data
