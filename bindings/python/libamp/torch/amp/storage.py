# SPDX-License-Identifier: Apache-2.0
"""libamp's blocks of memory as torch tensors: what the extension asks for at initialize, at the first bracket and at
shutdown."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

_DEVICES = {1: "cpu", 2: "cuda"}


def over(block: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A tensor of `dtype` on the block's memory, with the shape and the strides of `like`."""
    empty = torch.empty(0, dtype=dtype, device=block.device)
    return empty.set_(block.untyped_storage(), 0, like.shape, like.stride())


def alloc(n_bytes: int, device_type: int, index: int, served: torch.device | None = None) -> Tensor:
    """A block; never empty. served: a device that libamp works on by torch's own operators."""
    if served is not None:
        return torch.empty(n_bytes, dtype=torch.uint8, device=served)
    device = torch.device(_DEVICES[device_type]) if device_type == 1 else torch.device(_DEVICES[device_type], index)
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


def retire(block: Tensor) -> None:
    """A GPU's block is let go of, and the current stream may still be at it."""
    block.record_stream(torch.cuda.current_stream(block.device))


def number(capsule: Any) -> Tensor:
    """One float32 where the library keeps it: a scale, or whether to skip."""
    return dlpack.from_dlpack(capsule)


def swap(tensor: Tensor, block: Tensor, dtype: torch.dtype) -> Tensor:
    """Puts `block` under the tensor, which gets its type; what was there comes back as a tensor of its own."""
    with torch.no_grad():
        old, grad = tensor.data, tensor.grad
        tensor.grad = None
        tensor.data = over(block, dtype, tensor) if block.dtype is torch.uint8 else block
        if grad is not None:
            tensor.grad = grad.to(dtype)
    return old


def master(block: Tensor, param: Tensor) -> torch.nn.Parameter:
    """What the optimizer has in the place of a 16-bit parameter."""
    data = over(block, torch.float32, param) if block.dtype is torch.uint8 else block
    return torch.nn.Parameter(data, requires_grad=param.requires_grad)


def gradient(block: Tensor, of: Tensor) -> Tensor:
    """The FP32 gradient of a master."""
    return over(block, torch.float32, of)


def values_of(grad: Tensor) -> Tensor:
    """A gradient that is a view: its values, in memory of their own, for as long as a bracket sets them aside."""
    return grad.detach().clone()


def join(param: Tensor, view: Tensor) -> None:
    """The end of that: the parameter's gradient lies in the view again. One that backward put there itself (DDP with
    gradient_as_bucket_view) stays."""
    grad = param.grad
    if grad is None or grad is view or grad.data_ptr() == view.data_ptr():
        return
    with torch.no_grad():
        view.copy_(grad)
    param.grad = view


def bring_home(block: Tensor, master: Tensor, param: Tensor) -> None:
    """A master that a script gave other memory (`p.data = x`) has the library's again, with the values of x, laid out
    as its parameter is."""
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
    """A parameter was laid out anew: its gradient and its master's lie as it does. Returns the new tensor over the
    library's block, whose elements were `old`."""
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
    """The tensor with its values in a type, its elements in the order of `like`'s."""
    data = torch.empty_like(like, dtype=dtype, requires_grad=False)
    data.copy_(tensor.detach())
    tensor.data = data
