# SPDX-License-Identifier: Apache-2.0
"""Ends a session with a 16-bit model: every parameter and buffer gets the type that it had before.

The library restores the blocks that it took. The model may have replaced them: by another shape (an observer that
resizes its buffer), another tensor under the name (`self.seen = self.seen * 0.9 + x.mean()`), a new buffer, or freed
memory. Such a tensor keeps its values and is cast back.
"""
from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from . import fully_sharded, retype


def _has_memory(tensor: torch.Tensor) -> bool:
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = tensor.storage_offset() + last + 1
    return bool(tensor.untyped_storage().nbytes() >= end * tensor.element_size())


class Restoring:
    """The types of a session's tensors, recorded before any type changes. `low`: the type of its models."""

    def __init__(self, models: Iterable[nn.Module], low: torch.dtype) -> None:
        self._low = low
        self._models = [weakref.ref(model) for model in models]
        self._types: weakref.WeakKeyDictionary[nn.Module, dict[str, torch.dtype]] = weakref.WeakKeyDictionary()
        self._given: list[tuple[torch.Tensor, torch.Size]] = []
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for module in self._modules():
            self._types[module] = {name: tensor.dtype for name, tensor in _tensors(module)}

    def _modules(self) -> Iterator[nn.Module]:
        for ref in self._models:
            model = ref()
            if model is not None:
                yield from model.modules()

    def taken(self) -> None:
        """Records that the library has taken the models' tensors."""
        for module in self._modules():
            self._given += [(tensor, tensor.shape) for _, tensor in _tensors(module) if tensor.dtype is self._low]

    @torch.no_grad()
    def before(self, masters: dict[int, Any]) -> None:
        """Gives tensors of another shape the shape that the library knows, before it restores. Shards return to their
        modules."""
        for model in filter(None, (ref() for ref in self._models)):
            fully_sharded.reshard(model)
        for tensor, shape in self._given:
            master = masters.get(id(tensor))
            plain = tensor.layout is torch.strided and tensor.is_floating_point()
            if not plain or tensor.shape != shape or not _has_memory(tensor):
                values = master if master is not None and master.shape == tensor.shape else tensor
                if not plain or _has_memory(values):
                    self._kept.append((tensor, values.detach().clone()))
                tensor.grad = None
                tensor.data = torch.zeros(shape, dtype=self._low, device=tensor.device)
            if master is not None and master.shape != shape:
                master.grad = None
                master.data = tensor.detach().float()

    @torch.no_grad()
    def _put_back(self, dtype: torch.dtype) -> None:
        for tensor, values in self._kept:
            tensor.data = values.to(dtype) if values.is_floating_point() else values
        self._kept.clear()

    def refused(self) -> None:
        """Handles a refusal: the session continues."""
        self._put_back(self._low)

    def after(self) -> None:
        """Casts tensors back after the library has restored."""
        self._put_back(torch.float32)
        for module in self._modules():
            before = self._types.get(module, {})
            for name, tensor in _tensors(module):
                if tensor.dtype is self._low and before.get(name) is not self._low:
                    retype.set_type(tensor, torch.float32)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None and retype.is_plain(tensor):
            yield name, tensor
