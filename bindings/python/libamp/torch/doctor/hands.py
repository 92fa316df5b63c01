# SPDX-License-Identifier: Apache-2.0
"""What a script does itself to gradients that carry the loss scale, between backward and the scaler's step: divisions,
and clips without torch's functions. The ops of iterations that are watched op by op show them. A norm that stays the
same while the factor changes is a clip."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..._findings import Place
from .._dtensors import local_part
from .modules import address_of
from .places import script_place
from .watch import Change, Run

_FACTORS = ("mul", "div")
_LIMITS = ("clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "maximum", "minimum")
_ENOUGH = 3  # iterations with a factor that are watched
_ENGINE = ("graph.py", "__init__.py")  # of torch.autograd: they call backward


class Hands:
    """The changes of the present iteration."""

    def __init__(self, run: Run, later: Any, names: Any) -> None:
        self.run, self.later, self.names = run, later, names
        self.scale = 1.0  # of the gradients of the last backward
        self.iterations: set[int] = set()  # with a factor
        self.clear()

    def clear(self) -> None:
        """Begins an iteration."""
        self.grads: dict[int, Any] = {}  # parameters by the address of their gradient
        self.noted: dict[tuple[str, Place], tuple[Change, int, int]] = {}  # with id of the parameter, address of result

    @property
    def undecided(self) -> bool:
        """Whether another iteration tells more."""
        return 0 < len(self.iterations) < _ENOUGH

    def begin(self, scale: float, params: list[Any]) -> None:
        """Runs behind a backward."""
        self.scale = scale
        self.grads = {} if scale == 1 else {address_of(param.grad): param for param in params if param.grad is not None}

    def note(self, name: str, args: Any, out: Any, in_backward: bool) -> None:
        """Notes an op."""
        name = name.removeprefix("_foreach_") if self.scale != 1 else ""
        if not args or not (name in _FACTORS or name in _LIMITS):
            return
        if in_backward:
            if name in _LIMITS and (place := _hook()) is not None:
                self._limit(name, args, Change(name, "a hook", place, self.run.iterations, self.scale), 0, 0)
            return
        first, *others = args
        if len(others) == 1 and isinstance(others[0], torch.Tensor) and self._param(first) is None:
            first, others = others[0], [first]
        param = self._param(first)
        if param is None:
            return
        subject = self.names.name(id(param), "a gradient")[1]
        change = Change(name, subject, script_place(), self.run.iterations, self.scale)
        made = 0 if not isinstance(out, torch.Tensor) or address_of(out) in self.grads else address_of(out)
        if name in _LIMITS:
            self._limit(name, args, change, id(param), made)
        elif (name, change.place) not in self.noted:
            self.noted[name, change.place] = change, id(param), made
            self._factor(change, others[0] if others else None)

    def _param(self, value: Any) -> Any:
        tensor = value[0] if isinstance(value, (list, tuple)) and value else value
        return self.grads.get(address_of(tensor)) if isinstance(tensor, torch.Tensor) else None

    def _limit(self, name: str, args: Any, change: Change, key: int, made: int) -> None:
        change.limit = max((abs(float(each)) for each in args[1:] if type(each) in (int, float)), default=0.0)
        self.noted.setdefault((name, change.place), (change, key, made))

    def _factor(self, change: Change, value: Any) -> None:
        value = value[0] if isinstance(value, (list, tuple)) and value else value

        def then(number: float) -> None:
            change.factor = number if change.op == "mul" else 1 / number if number else 0.0

        if type(value) in (int, float):
            then(float(value))
        elif isinstance(value, torch.Tensor) and value.numel() == 1:
            self.later.put(value.detach(), then)

    def on_clip(self, place: Place) -> None:
        """Runs before one of torch's clips."""
        for change, _, _ in self.noted.values():
            change.clip = place

    def end(self, optimizer: Any, divided: bool) -> None:
        """Runs before the scaler divides the gradients of an optimizer (divided), or before its step."""
        params = [param for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
        own, results = {id(param) for param in params}, {address_of(param.grad) for param in params}
        for key, (change, param, made) in list(self.noted.items()):
            if (param and param not in own) or (made and made not in results):
                continue
            del self.noted[key]
            change.divided = divided
            self.run.changes.append(change)
            if change.op in _FACTORS:
                self.iterations.add(change.iteration)
                self._norms(change, params, param)

    def _norms(self, change: Change, params: list[Any], key: int) -> None:
        norms = [local_part(param.grad).detach().float().norm() for param in params]
        own = next(norm for norm, param in zip(norms, params) if id(param) == key)
        total = torch.stack([norm.to(own.device) for norm in norms]).norm()

        def then(values: list[float]) -> None:
            change.norm, change.own = values

        self.later.put_all([total, own], then)


def _hook() -> Place | None:
    """Returns the line of a hook of the script that autograd calls, else None: ops of autograd's own formulas, of a
    Function's backward and of recomputed forwards are none."""
    place, frame = script_place(), sys._getframe(1)
    while frame is not None and not _is_at(frame, place) and not _is_engine(frame):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or _is_engine(frame):
        return None  # no code of the script below autograd
    while frame is not None and frame.f_code.co_filename == place.filename:
        frame = frame.f_back  # type: ignore[assignment]
    return place if frame is None or _is_engine(frame) else None  # a thread of autograd begins with the hook


def _is_at(frame: Any, place: Place) -> bool:
    return bool(frame.f_code.co_filename == place.filename)


def _is_engine(frame: Any) -> bool:
    folder, _, file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")
    return bool(folder.endswith("torch/autograd") and file in _ENGINE)
