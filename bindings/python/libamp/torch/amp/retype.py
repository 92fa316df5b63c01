# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers of models as the library receives them, and the types that it leaves to its host: other than
FP32 and 16 bits."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

LOW = (torch.float16, torch.bfloat16)


def is_kept(module: nn.Module) -> bool:
    """Returns True for a batch norm to which keep_batchnorm_fp32 applies: an affine one, as in Apex."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and bool(module.affine)


def describe(
    models: Iterable[nn.Module], staying: frozenset[int] = frozenset(), keep_norms: bool = True
) -> list[tuple[torch.Tensor, str, bool]]:
    """Returns (tensor, name, stays FP32) of each floating parameter and buffer that libamp supports. Batch norms stay,
    and tensors with these ids: shards, which are FP32 masters, and kept buffers."""
    listed: list[tuple[torch.Tensor, str, bool]] = []
    seen: set[int] = set()
    for index, model in enumerate(models):
        owner = f"model{index}." if index else ""
        for path, module in model.named_modules():
            tensors = [*module._parameters.items(), *module._buffers.items()]
            for name, tensor in tensors:
                if tensor is None or id(tensor) in seen or not is_plain(tensor):
                    continue
                seen.add(id(tensor))
                stays = id(tensor) in staying or (keep_norms and is_kept(module))
                listed.append((tensor, f"{owner}{path}.{name}" if path else owner + name, stays))
    return listed


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns True for a dense floating tensor with elements."""
    plain = tensor.layout is torch.strided and tensor.is_floating_point() and tensor.numel() > 0
    return plain and not isinstance(tensor, nn.parameter.UninitializedTensorMixin)


def is_scaled(tensor: torch.Tensor) -> bool:
    """Returns True if the library can unscale the gradient. Complex numbers are pairs of real ones."""
    if tensor.is_complex() and tensor.layout is torch.strided:
        return tensor.numel() > 0
    return is_plain(tensor)


def _is_empty(tensor: torch.Tensor) -> bool:
    lazy = isinstance(tensor, nn.parameter.UninitializedTensorMixin)
    return not lazy and tensor.layout is torch.strided and tensor.is_floating_point() and tensor.numel() == 0


def _has_gaps(tensor: torch.Tensor) -> bool:
    return torch.empty_like(tensor, device="meta").stride() != tensor.stride()


def set_type(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Casts a tensor in place, with its gradient."""
    grad = tensor.grad
    tensor.grad = None
    tensor.data = tensor.data.to(dtype)
    if grad is not None:
        tensor.grad = grad.to(dtype)


def to_fp32(
    models: Iterable[nn.Module], keep_batch_norm: bool, empty: torch.dtype, staying: frozenset[int]
) -> Callable[[], None]:
    """Casts floating tensors of the models to FP32 without gaps in memory, as the library requires. Tensors without
    elements, which it does not know, get the type `empty`. Those with the ids `staying` are right. Returns the undo
    function."""
    before: list[tuple[torch.Tensor, torch.dtype]] = []
    for model in models:
        for module in model.modules():
            if keep_batch_norm and is_kept(module):
                continue
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                if tensor is None or id(tensor) in staying:
                    continue
                if _is_empty(tensor) and tensor.dtype is not empty:
                    before.append((tensor, tensor.dtype))
                    set_type(tensor, empty)
                if not is_plain(tensor):
                    continue
                if tensor.dtype is not torch.float32:
                    before.append((tensor, tensor.dtype))
                    set_type(tensor, torch.float32)
                if _has_gaps(tensor):
                    tensor.data = tensor.data.contiguous()

    def undo() -> None:
        for tensor, dtype in before:
            set_type(tensor, dtype)

    return undo


def check_incoming(models: Iterable[nn.Module], refuse: Callable[[str], Any]) -> None:
    """Checks that models are FP32, as Apex does. bf16 and FP64 pass."""
    for model in models:
        named: list[tuple[str, str, torch.Tensor]] = [("param", *entry) for entry in model.named_parameters()]
        named += [("buffer", *entry) for entry in model.named_buffers()]
        for what, name, tensor in named:
            if tensor.dtype is torch.float16:
                refuse(
                    f"{what} {name} is {tensor.type()} already: amp.initialize takes the model in FP32 and gives it "
                    "the level's types itself, so leave .half() out. If another initialize made it half, call "
                    "amp.shutdown first"
                )


def flatten_rnns(models: Iterable[nn.Module]) -> None:
    """Makes the weights of recurrent modules contiguous again after their type has changed."""
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
