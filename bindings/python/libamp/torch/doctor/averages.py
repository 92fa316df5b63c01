# SPDX-License-Identifier: Apache-2.0
"""Averages of weights in 16 bits: torch's AveragedModel, copies of a trained module that follow it (timm, BYOL, target
networks), and tensors beside the parameters (diffusers, a dictionary of the script's own).

Each average is compared with its first values, and the model with its own. A copy that nobody writes (a reference
model, a checkpoint in memory) is told from an average that stands still by torch's count of writes, which grows when
rounding undoes the write, too."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .._dtensors import local_part
from .._living import has_grad_fn, living
from .names import plain
from .places import script_place
from .samples import LOW, is_readable, part
from .watch import NOWHERE, Average, Run

PAIRS = 32  # tensors of an average that are compared
ELEMENTS = 64  # of each
_SHADOWED = 4  # parameters whose shadows are searched
_ALIKE = 0.5  # least cosine between an average and its parameter


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference_mode
        return -1


def _sample(tensor: Any) -> Any:
    local = local_part(tensor).detach()
    return part(local, max(1, -(-local.numel() // ELEMENTS)))


def _is_low(tensor: Any) -> bool:
    return tensor.dtype in LOW and is_readable(local_part(tensor)) and local_part(tensor).numel() > 0


class _Pairs:
    """An average beside its model, as pairs of tensors."""

    def __init__(self, record: Average, pairs: list[tuple[str, Any, Any]]) -> None:
        self.record = record
        self.names = [name for name, _, _ in pairs]
        self.refs = [(weakref.ref(average), weakref.ref(param)) for _, average, param in pairs]
        self.first = [(_sample(average).clone(), _sample(param).clone()) for _, average, param in pairs]
        self.moved: list[Any] = [torch.zeros_like(average, dtype=torch.bool) for average, _ in self.first]
        self.followed: list[Any] = [torch.zeros_like(param, dtype=torch.bool) for _, param in self.first]
        self.last = self.first[0]  # of the first pair
        self.version = _version(pairs[0][1])
        record.sampled = sum(average.numel() for average, _ in self.first)

    def look(self, counts: bool = True) -> None:
        """Compares all with their first values. counts: writes are updates."""
        for index, ((average_ref, param_ref), (first, model)) in enumerate(zip(self.refs, self.first)):
            average, param = average_ref(), param_ref()
            if average is None or param is None:
                continue
            now, then = _sample(average), _sample(param)
            if now.shape == first.shape and then.shape == model.shape and now.device == first.device:
                self.moved[index] |= now != first
                self.followed[index] |= then.to(model.device) != model
            if not index:
                version = _version(average)
                self.record.updates += max(0, version - self.version) if counts else 0
                self.version, self.last = version, (now.clone(), then.clone())
        self.record.looks += 1

    def is_alike(self) -> bool:
        """Returns True if the first tensor points where its parameter does, or did: unrelated tensors of its shape do
        not. This waits for the device."""
        average = self.last[0].float()
        params = [value.to(average.device).float() for value in (self.last[1], self.first[0][1])]
        return any(float(torch.cosine_similarity(average, param, dim=0)) >= _ALIKE for param in params)

    def finish(self) -> None:
        """Counts. This waits for the device."""
        shares = []
        for name, moved, followed in zip(self.names, self.moved, self.followed):
            both, model = int((moved & followed.to(moved.device)).sum()), int(followed.sum())
            self.record.moved += both
            self.record.followed += model
            shares += [(both / model, name)] if model else []
        self.record.worst = min(shares)[1] if shares else ""


class Averages:
    """The averages of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.known: dict[int, _Pairs] = {}  # by id of the averaging object or copy
        self.copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.shadows: list[_Pairs] = []  # of one tensor each

    # ---- torch's AveragedModel ----

    def on_average(self, averaged: Any, model: Any) -> None:
        """Runs after update_parameters(model)."""
        pairs = self.known.get(id(averaged))
        if pairs is None:
            inner = getattr(averaged, "module", averaged)
            listed = _pairs_of(inner, model) if isinstance(model, nn.Module) else []
            if not listed:
                return
            pairs = self.known[id(averaged)] = _Pairs(self._record(type(averaged).__name__, listed), listed)
            pairs.record.place = script_place()
            self.copies.add(inner)
        record = pairs.record
        if record.place is NOWHERE:  # found as a copy, before its first update
            record.place, record.updates = script_place(), 0
        record.updates += 1
        if record.updates & (record.updates - 1) == 0:
            pairs.look(counts=False)

    def _record(self, kind: str, pairs: list[tuple[str, Any, Any]]) -> Average:
        return Average(kind, str(pairs[0][1].dtype).removeprefix("torch."), NOWHERE)

    # ---- copies of modules, and tensors ----

    def look(self) -> None:
        """Compares the copies and tensors that are known."""
        for pairs in (*self.known.values(), *self.shadows):
            if pairs.record.place is NOWHERE:
                pairs.look()

    def search(self, models: Iterable[Any], optimizers: list[Any], names: dict[int, str]) -> None:
        """Searches for copies and shadows of what these optimizers train. It takes as long as a collection of garbage
        if weights are in 16 bits, else a walk over modules."""
        params = [param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]]
        owned = {id(param) for param in params}
        alive = [model for model in models if model is not None]
        trained = {_shape(module): module for model in alive for module in _with(model, owned)}
        for model in alive:
            for copy in _without(model, owned):
                source = trained.get(_shape(copy))
                if source is not None and id(copy) not in self.known and copy not in self.copies:
                    listed = _pairs_of(copy, source)
                    if listed:
                        self.known[id(copy)] = _Pairs(self._record(type(copy).__name__, listed), listed)
                        self.copies.add(copy)
        matrices = [param for param in params if param.dim() > 1 and _is_low(param)][:_SHADOWED]
        if matrices and not self.shadows:
            mine = owned | {id(value) for each in optimizers for value in _state(each)}
            mine |= {id(param.grad) for param in params}
            mine |= {id(param) for model in alive for param in model.parameters()}
            for param, tensor in _same_shape(matrices, mine):
                pair = [(names.get(id(param), ""), tensor, param)]
                self.shadows.append(_Pairs(self._record("tensors of the script", pair), pair))

    def finish(self) -> None:
        """Adds the averages to the record. A copy that was never written is none."""
        for pairs in (*self.known.values(), *self.shadows):
            pairs.look(counts=pairs.record.place is NOWHERE)
            pairs.finish()
        listed = [pairs.record for pairs in self.known.values()]
        shadows = [pairs.record for pairs in self.shadows if pairs.record.updates and pairs.is_alike()]
        if shadows:
            worst = min(shadows, key=lambda each: each.moved / max(1, each.followed))
            whole = {name: sum(getattr(each, name) for each in shadows) for name in ("sampled", "moved", "followed")}
            listed.append(dataclasses.replace(worst, **whole))
        self.run.averages += [record for record in listed if record.updates]


def _pairs_of(copy: nn.Module, model: nn.Module) -> list[tuple[str, Any, Any]]:
    """Returns the largest parameters of a copy in 16 bits beside those of its model."""
    params = {plain(name): param for name, param in model.named_parameters()}
    found = [
        (plain(name), average, params[plain(name)])
        for name, average in copy.named_parameters()
        if plain(name) in params and average.shape == params[plain(name)].shape
    ]
    found = [each for each in found if _is_low(each[1]) and is_readable(local_part(each[2])) and each[1] is not each[2]]
    return found[:PAIRS]


def _shape(module: nn.Module) -> tuple[Any, ...]:
    return tuple((plain(name), tuple(param.shape)) for name, param in module.named_parameters())


def _with(model: nn.Module, owned: set[int]) -> Iterator[nn.Module]:
    """Yields the modules that are trained, the outermost last, so that it is the one of its shape."""
    for module in reversed(list(model.modules())):
        if any(id(param) in owned for param in module.parameters()):
            yield module


def _without(module: nn.Module, owned: set[int]) -> Iterator[nn.Module]:
    """Yields the outermost modules of which nothing is trained."""
    params = list(module.parameters())
    if params and not any(id(param) in owned for param in params):
        yield module
    elif params:
        for child in module.children():
            yield from _without(child, owned)


def _state(optimizer: Any) -> Iterator[Any]:
    for state in list(optimizer.state.values()):
        if isinstance(state, dict):
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _same_shape(params: list[Any], mine: set[int]) -> Iterator[tuple[Any, Any]]:
    """Yields parameters with the tensors of their shape and type that nobody known owns."""
    shapes = {(tuple(param.shape), param.dtype, param.device): param for param in params}
    tensors = living(frozenset((torch.Tensor, nn.Parameter)))
    own = {param.data_ptr() for param in params}
    for tensor in tensors:
        if id(tensor) not in mine and tensor.dtype in LOW and tensor.layout is torch.strided:
            param = shapes.get((tuple(tensor.shape), tensor.dtype, tensor.device))
            if param is not None and tensor.data_ptr() not in own and not has_grad_fn(tensor):
                yield param, tensor


__all__ = ["Averages"]
