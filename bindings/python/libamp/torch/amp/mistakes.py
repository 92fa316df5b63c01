# SPDX-License-Identifier: Apache-2.0
"""Checks scripts for mistakes in the first two iterations of each optimizer. Later an iteration costs a few tests of
flags. torch functions that scripts call are wrapped while a session is that young."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ... import _findings
from . import outer_optimizers, sharding
from .session import Session
from .torch_checks import Guard

_ITERATIONS = 2
_DOUBTS = 8  # so many steps without a bracket are looked at
_SCALERS = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")


class Look:
    """A bracket that is checked, from begin to end."""

    def __init__(self, scale: Any, scaled: Any, optimizers: list[Any]) -> None:
        self.ran = False  # has backward?
        self.made = False  # a gradient?
        self.is_scaled = isinstance(scale, torch.Tensor) or scale != 1.0
        self.stashes = [optimizer._amp_stash for optimizer in optimizers]
        self.carried = not self.is_scaled or not getattr(scaled, "requires_grad", False)
        if not self.carried:
            scaled.register_hook(self._carry)

    def _carry(self, gradient: torch.Tensor) -> None:
        self.carried = True

    def params(self) -> list[torch.Tensor]:
        return [param for stash in self.stashes for param, _ in stash._pairs()]

    def after_backward(self) -> None:
        params = self.params()
        self.made = self.made or (not _is_sharded(params) and _any(params))

    def clips_too_early(self, given: set[int]) -> bool:
        """Returns True if a clip of these inside the block is too early. At a scale of 1 the gradients are final, but
        not yet in a master."""
        pairs = [pair for stash in self.stashes for pair in stash._pairs()]
        masters = {id(master) for _, master in pairs if master is not None}
        scaled = {id(param) for param, _ in pairs} if self.is_scaled else set()
        return not given.isdisjoint(masters | scaled)


class Mistakes:
    """The checks of one session."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self.record: _findings.Record = session.record
        # without optimizers a level that leaves parameters alone has its casts alone: the script does the rest
        self.scales = session.resolved["loss_scale"] != 1.0 and bool(session.optimizers)
        self.matters = self.scales or bool(session.resolved["master_weights"])
        self.casts = bool(session.resolved["patch_ops"]) or session.resolved["cast_model_type"] in (
            "float16",
            "bfloat16",
        )
        self.types = {id(param): param.dtype for _, _, param in self._params() if not _is_lazy(param)}
        self.known = {id(param) for _, _, param in self._params()}
        self.left = _ITERATIONS * max(1, len(session.optimizers))
        self.brackets = 0
        self.look: Look | None = None
        self.is_open = False  # is a bracket?
        self.doubts = _DOUBTS
        self.outside: _findings.Place | None = None  # of the last backward outside of brackets, since the last step
        self.by_hand = False  # the script scales by hand
        self.retyped: tuple[_findings.Place, dict[str, torch.dtype]] | None = None
        self.copies: weakref.WeakKeyDictionary[nn.Module, _findings.Place] = weakref.WeakKeyDictionary()
        self.steps = 0
        self.added: tuple[int, dict[int, Any]] = 0, {}  # without a scale: number of steps, and values by parameter
        self.cleared = 0  # how often gradients were, before a step
        self.fresh = True
        _fresh.add(self)
        for tap in TAPS:
            tap.put()
        weakref.finalize(self, _take_taps).atexit = False

    # ---- present state ----

    def _models(self) -> list[nn.Module]:
        session = self._session()
        models = [ref() for ref in session.models] if session is not None else []
        return [model for model in models if model is not None and not sharding._is_sharded(model)]

    def _params(self) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
        for model in self._models():
            for name, param in model.named_parameters():
                yield model, name, param

    def _stashes(self) -> list[Any]:
        session = self._session()
        optimizers = [ref() for ref in session.optimizers] if session is not None else []
        return [optimizer._amp_stash for optimizer in optimizers if optimizer is not None]

    def finish(self) -> None:
        """Ends the checks."""
        self.fresh = False
        _fresh.discard(self)
        _take_taps()
        self._settle()

    def _settle(self) -> None:
        session = self._session()
        if session is not None:
            session.looks = self.fresh or self.retyped is not None

    # ---- forward ----

    def forward(self, module: Any) -> None:
        """Records a forward of the model or of a copy of it."""
        if not torch.is_grad_enabled() or not isinstance(module, nn.Module) or not module.training:
            return
        session = self._session()
        if session is None or getattr(module, "_is_replica", False):
            return
        if not any(ref() is module for ref in session.models):
            if self.fresh and self.matters and module not in self.copies:
                self.copies[module] = _findings.place()
            return
        self._check_types()
        if self.casts and _is_autocast_on():
            self.record.report("AMP-M36")

    def _check_types(self) -> None:
        if self.retyped is not None:
            at, before = self.retyped
            self.retyped = None
            now = {name: param.dtype for _, name, param in self._params()}
            self._report_type(((name, dtype, now.get(name, dtype)) for name, dtype in before.items()), at)
            self._settle()
        elif self.fresh:
            listed = self._params()
            self._report_type(
                ((name, self.types.get(id(param), param.dtype), param.dtype) for _, name, param in listed), None
            )

    def _report_type(self, listed: Iterator[tuple[str, torch.dtype, torch.dtype]], at: _findings.Place | None) -> None:
        for name, before, now in listed:
            if now is not before:
                self.types.clear()
                self.record.report("AMP-M35", "", f"{name} was {_name(before)} and is {_name(now)}", at)
                return

    def applied(self, module: nn.Module, before: dict[str, torch.dtype]) -> None:
        """Records a call of half, float or to. Tensors with a new type are checked at the next forward in training."""
        session = self._session()
        if session is None or self.retyped is not None or not any(ref() is module for ref in session.models):
            return
        if any(before.get(name, param.dtype) is not param.dtype for name, param in module.named_parameters()):
            self.retyped = _findings.place(), before
            self._settle()

    # ---- brackets ----

    def begin(self, optimizers: list[Any]) -> None:
        """Runs before a bracket."""
        if self.outside is None or not self.fresh or not self.matters or self.by_hand:
            return
        if any(_written(optimizer._amp_stash) for optimizer in optimizers):
            self.record.report("AMP-M30", at=self.outside)
        self.outside = None

    def begun(self, scale: Any, scaled: Any, optimizers: list[Any]) -> None:
        """Runs after a bracket has begun."""
        self.is_open = True
        if self.fresh:
            self.look = Look(scale, scaled, optimizers)

    def cancelled(self, optimizers: list[Any]) -> None:
        self.look, self.is_open = None, False
        for optimizer in optimizers:
            optimizer._amp_stash.bracketed = True

    def end(self, optimizers: list[Any]) -> None:
        """Runs after backward, before the gradients change."""
        look, self.look, self.is_open = self.look, None, False
        self.brackets += 1
        if self.brackets & (self.brackets - 1) == 0:
            self._check_added()
        self.record.missing = True
        if look is None:
            return
        params = look.params()
        self.record.missing = any(param.grad is None and param.requires_grad for param in params)
        if not look.ran:
            return
        self._check_copies()
        if _is_sharded(params):
            return
        if look.made and not _any(params):
            self.record.report("AMP-M42", saw="inside the block")
        elif not any(param.grad is not None for param in params):
            self.record.report("AMP-M40")
        elif not look.carried and not self.by_hand:
            self.record.report("AMP-M31")

    def ended(self, optimizers: list[Any]) -> None:
        """Runs after the gradients are unscaled."""
        for optimizer in optimizers:
            stash = optimizer._amp_stash
            stash.bracketed = True
            if self.fresh:
                elsewhere = sharding.takes_gradients(optimizer) or _is_sharded(param for param, _ in stash._pairs())
                stash.has_grads = not elsewhere and _has_gradients(stash)
                stash.grads = {
                    id(param): (param.grad, param.grad._version)
                    for param, master in stash._pairs()
                    if master is not None and param.grad is not None
                }

    def _check_added(self) -> None:
        known = self.known
        new = [(name, param) for _, name, param in self._params() if id(param) not in known and param.grad is not None]
        listed = {id(param) for stash in self._stashes() for param, _ in stash._pairs()} if new else set()
        added = [(name, param) for name, param in new if id(param) not in listed]
        if not self.matters:  # an optimizer of the script's own may have it
            (steps, before), values = self.added, {id(param): _value(param) for _, param in added}
            self.added = self.steps, values
            kept = [(name, param) for name, param in added if before.get(id(param)) == values[id(param)]]
            added = kept if steps != self.steps else []
        names = [name for name, _ in added]
        if names and not self.record.has("AMP-M34"):
            self.record.report("AMP-M34", names[0], f"{len(names)} of them, {', '.join(names[:3])}")

    def _check_copies(self) -> None:
        for copy, at in list(self.copies.items()):
            if any(param.grad is not None for param in copy.parameters()):
                self.record.report("AMP-M39", at=at)

    # ---- steps ----

    def before_step(self, stash: Any) -> None:
        """Runs before a step of an optimizer of the session."""
        if not self.fresh:
            self.doubts -= 1
        if self.is_open or any(each.running for each in self._stashes()):
            return  # the library refuses it, or the step of one that is around it has been looked at
        if self.fresh and stash.bracketed and stash.has_grads and not _has_gradients(stash):
            self.cleared += 1  # once, a script may discard bad gradients
            if self.cleared == 2:
                self.record.report("AMP-M42", saw="after the block")
        if not self.matters or self.by_hand or self.doubts < 0:
            return
        if self.scales and _grad_scaler_steps():
            self.record.report("AMP-M37")
        elif not stash.bracketed:
            if not self.record.has("AMP-M30", "AMP-M37", "AMP-M38") and _has_gradients(stash):
                self.record.report("AMP-M38" if self.outside is None else "AMP-M30", at=self.outside)
        elif self.fresh and not self.record.has("AMP-M30", "AMP-M32") and _written(stash):
            self.record.report("AMP-M32" if self.outside is None else "AMP-M30", at=self.outside)

    def after_step(self, stash: Any) -> None:
        """Runs after a step. The next iteration begins."""
        bracketed, stash.bracketed, stash.grads = stash.bracketed, False, {}
        self.outside = None
        self.steps += 1
        if self.fresh and bracketed and not _findings.is_strict():
            self.left -= 1
            if self.left <= 0:
                self.finish()

    def scaler_steps(self, stash: Any) -> None:
        """Runs before GradScaler steps an optimizer, which it may refuse."""
        if stash.session is self._session() and not self.by_hand and (self.scales or not stash.bracketed):
            self.record.report("AMP-M37")

    def clips(self, given: set[int]) -> None:
        """Runs before gradients of these are clipped."""
        session = self._session()
        waiting = (stash for stash in self._stashes() if self.scales and stash.params_have_scaled_gradients)
        early = self.look is not None and self.look.clips_too_early(given)
        if early or any(id(param) in given for stash in waiting for param, _ in stash._pairs()):
            if not self.by_hand:
                self.record.report("AMP-M41")
        elif session is not None and not given.isdisjoint(session.masters):
            self.record.report("AMP-M32")

    def stranger(self, optimizer: Any, params: set[int]) -> None:
        """Runs before a step of an optimizer that amp does not know."""
        for copy, at in list(self.copies.items()):
            if any(id(param) in params for param in copy.parameters()):
                self.record.report("AMP-M39", at=at)
        session = self._session()
        if session is None:
            return
        ours = {id(param) for _, _, param in self._params()} | {id(master) for master in session.masters.values()}
        if not ours.isdisjoint(params):
            self.record.report("AMP-M33", type(optimizer).__name__)


def _is_lazy(param: Any) -> bool:
    return isinstance(param, nn.parameter.UninitializedTensorMixin)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_autocast_on() -> bool:
    try:
        return any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    except TypeError:  # torch before 2.4
        return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def _has_gradients(stash: Any) -> bool:
    """Returns True if there are gradients that a step would use or miss."""
    return _any(tensor for pair in stash._pairs() for tensor in pair if tensor is not None)


def _is_sharded(params: Iterable[torch.Tensor]) -> bool:
    """Returns True for sharded parameters: a rank may have no elements, and a read may wait for the others."""
    return any(sharding.is_part(param) for param in params)


def _any(params: Iterable[torch.Tensor]) -> bool:
    """Returns True if a gradient is nonzero."""
    return any(param.grad is not None and bool(_values(param.grad).any()) for param in params)


def _value(param: torch.Tensor) -> tuple[int, float]:
    """Returns a value that changes with each write to the parameter, through .data too."""
    return param._version, float(param.detach().double().sum())


def _written(stash: Any) -> bool:
    """Returns True if gradients of parameters with masters were written since a bracket ended."""
    for param, master in stash._pairs():
        grad = param.grad
        if master is None or grad is None:
            continue
        left, version = stash.grads.get(id(param), (None, 0))
        if (grad is not left or grad._version != version) and bool(_values(grad).any()):
            return True
    return False


def _values(grad: torch.Tensor) -> torch.Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _grad_scaler_steps() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _SCALERS:
            return bool(getattr(frame.f_locals.get("self"), "_enabled", True))
        frame = frame.f_back
    return False


# ---- taps ----

_fresh: weakref.WeakSet[Mistakes] = weakref.WeakSet()


def _take_taps() -> None:
    if not list(_fresh):  # its length includes objects under collection
        for tap in TAPS:
            tap.put_back()


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(*args: Any, **kwargs: Any) -> Any:
        for each in list(_fresh):
            if each.look is not None:
                each.look.ran = True
            elif each.matters and not any(other.look for other in _fresh):
                each.outside = _findings.place()
        result = original(*args, **kwargs)
        for each in list(_fresh):
            if each.look is not None:
                each.look.after_backward()
        return result

    return backward


def _clip(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)
        given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        for each in list(_fresh):
            each.clips({id(param) for param in given})
        return original(parameters, *args, **kwargs)

    return clip


def _scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        stash = getattr(optimizer, "_amp_stash", None)
        for each in list(_fresh) if stash is not None and self.is_enabled() else ():
            if each.matters:
                each.scaler_steps(stash)
        return original(self, optimizer, *args, **kwargs)

    return step


class _Steps:
    """A torch hook on the steps of all optimizers, installed and removed as a Guard."""

    def __init__(self) -> None:
        self._handle: Any = None

    def put(self) -> None:
        register = getattr(sys.modules[torch.optim.Optimizer.__module__], "register_optimizer_step_pre_hook", None)
        if self._handle is None and register is not None:
            self._handle = register(_before_any_step)

    def put_back(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _before_any_step(optimizer: Any, *ignored: Any) -> None:
    if any(hasattr(each, "_amp_stash") for each in (optimizer, *outer_optimizers.inside(optimizer, []))):
        return
    params = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for each in list(_fresh):
        if each.matters:
            each.stranger(optimizer, params)


TAPS: list[Any] = [
    Guard(torch.autograd, "backward", _backward),
    Guard(torch.nn.utils, "clip_grad_norm_", _clip),
    Guard(torch.nn.utils, "clip_grad_value_", _clip),
    Guard(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), "step", _scaler_step),
    _Steps(),
]


def watch(session: Session) -> None:
    """Begins the checks at the end of initialize."""
    session.mistakes = Mistakes(session)
    session.looks = True
    session.undo.append(session.mistakes.finish)
