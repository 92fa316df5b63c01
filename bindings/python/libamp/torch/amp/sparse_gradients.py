# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients (nn.Embedding(sparse=True)) with a scaled loss, unscaled as torch's GradScaler does.

The library supports only gradients of the size of their parameters, so sparse ones are hidden from it. This file
unscales their values. A parameter of one element beside each reports to the library whether they are finite, so that it
decides about all gradients together. With masters the sparse gradient, in FP32, belongs to the master.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

_LOW = (torch.float16, torch.bfloat16)


def _is_sparse(grad: torch.Tensor | None) -> bool:
    return grad is not None and grad.layout is torch.sparse_coo


def _joined(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    if first.dtype not in _LOW:
        return first + second
    indices = torch.cat([first._indices(), second._indices()], 1)  # torch cannot add them in half on CPUs
    return torch.sparse_coo_tensor(indices, torch.cat([first._values(), second._values()]), first.shape)


def _modules(models: Iterable[nn.Module]) -> list[nn.Module]:
    return [module for model in models for module in model.modules() if getattr(module, "sparse", None) is True]


def is_used(models: Iterable[nn.Module]) -> bool:
    """Returns True if a module can make sparse gradients."""
    return bool(_modules(models))


class Sparse:
    """The sparse parameters of a session, of modules with `sparse=True`, and the flag of each."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        listed = [param for module in _modules(models) for param in module._parameters.values()]
        self._may = {id(param) for param in listed if param is not None}
        self._flags: dict[int, torch.Tensor] = {}
        self._lists: list[list[torch.Tensor]] = []  # lists of each optimizer
        self.kept: dict[int, torch.Tensor] = {}  # unscaled gradients, while a bracket is open
        self.scaled: dict[int, torch.Tensor] = {}  # gradients that a bracket has left scaled
        self.delayed: set[int] = set()  # owners of these gradients

    def with_flags(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns an optimizer's parameters and the flags."""
        mine = [param for param in params if id(param) in self._may]
        for param in mine:
            self._flags.setdefault(id(param), torch.zeros(1, device=param.device))
        self._lists.append(mine)
        return [*params, *(self._flags[id(param)] for param in mine)]

    def is_flag(self, tensor: torch.Tensor) -> bool:
        """Returns True for a flag."""
        return any(tensor is flag for flag in self._flags.values())

    def begin(self, session: Any, indices: list[int], delays: bool, begin: Any) -> Any:
        """Opens a bracket around the library's, which `begin()` opens."""
        params = list({id(param): param for i in indices for param in self._lists[i]}.values())
        if not params:
            return begin()
        holders = [session.masters.get(id(param), param) for param in params]
        pairs = list(zip(params, holders, strict=True))
        for param, holder in pairs:
            delayed = id(param) in self.delayed
            place, at = (self.scaled, param) if delayed else (self.kept, holder)
            if _is_sparse(at.grad):
                place[id(param)], at.grad = at.grad, None
        try:
            return Bracket(self, begin(), pairs, delays)
        except BaseException:
            self.give_back(pairs)
            raise

    def give_back(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Restores the gradients as they were at begin."""
        for param, holder in pairs:
            for place, at in ((self.kept, holder), (self.scaled, param)):
                if id(param) in place and id(param) not in (self.delayed if place is self.kept else ()):
                    at.grad = place.pop(id(param))

    @torch.no_grad()
    def unscale(self, param: torch.Tensor, grad: torch.Tensor, scale: Any, dtype: torch.dtype) -> torch.Tensor:
        """Returns the gradient without the scale, in a type. Its flag becomes nonfinite if the gradient is."""
        if grad.dtype in _LOW:  # computed in FP32, because 16-bit sums would overflow
            grad = grad.float().coalesce().to(dtype)
        values = grad._values()
        values.mul_(1.0 / scale if isinstance(scale, float) else scale.double().reciprocal().to(values.dtype))
        self._flags[id(param)].grad = (values.float() * 0.0).sum().reshape(1)
        return grad


class Bracket:
    """scale, end and cancel as in _core.Bracket."""

    def __init__(
        self, sparse: Sparse, bracket: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]], delays: bool
    ) -> None:
        self._sparse, self._bracket, self._pairs, self._delays = sparse, bracket, pairs, delays

    @property
    def scale(self) -> Any:
        """Returns the factor of the loss."""
        return self._bracket.scale

    def end(self) -> Any:
        """Unscales, checks and decides."""
        sparse, ready = self._sparse, []
        scale = self._bracket.scale
        for param, holder in self._pairs:
            grad = param.grad if _is_sparse(param.grad) else None
            grad = _joined(sparse.scaled.pop(id(param), None), grad)
            if grad is not None:
                param.grad = None
                grad = grad if self._delays else sparse.unscale(param, grad, scale, holder.dtype)
                ready.append((param, holder, grad))
        try:
            return self._bracket.end()
        finally:
            for param, holder, grad in ready:
                sparse._flags[id(param)].grad = None
                if self._delays:
                    param.grad = grad
                else:
                    holder.grad = _joined(sparse.kept.pop(id(param), None), grad)
            for param, holder in self._pairs:
                if self._delays:
                    sparse.delayed.add(id(param))
                    continue
                sparse.delayed.discard(id(param))
                if id(param) in sparse.kept:  # backward made none
                    holder.grad = _joined(sparse.kept.pop(id(param)), holder.grad)

    def cancel(self) -> None:
        """Restores the gradients from before backward."""
        for param, _ in self._pairs:
            if _is_sparse(param.grad):
                param.grad = None
        self._bracket.cancel()
        self._sparse.give_back(self._pairs)
