# SPDX-License-Identifier: Apache-2.0
"""libamp's blocks of memory as torch tensors: what the extension asks for at initialize, at the first bracket and at
shutdown."""
from __future__ import annotations

import torch
from torch import Tensor

_DEVICES = {1: "cpu", 2: "cuda"}


def over(block: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A tensor of `dtype` on the block's memory, with the shape and the strides of `like`."""
    empty = torch.empty(0, dtype=dtype, device=block.device)
    return empty.set_(block.untyped_storage(), 0, like.shape, like.stride())


def alloc(n_bytes: int, device_type: int, index: int) -> Tensor:
    """A block; never empty."""
    device = torch.device(_DEVICES[device_type]) if device_type == 1 else torch.device(_DEVICES[device_type], index)
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


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
