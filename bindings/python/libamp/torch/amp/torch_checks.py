# SPDX-License-Identifier: Apache-2.0
"""Places where torch itself must know that casts go on: its own checks of types, its compilers, its autocast.

Each guard replaces one attribute while a context patches."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from ... import _core
from .compiling import is_compiling
from .session import live


class Guard:
    """`make(original)` stands in the place of owner.name."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner, self.name, self.make = owner, name, make
        self.own: Any = None
        self.new: Any = None

    def put(self) -> None:
        if self.new is not None:
            return
        self.own = vars(self.owner)[self.name]
        self.new = functools.wraps(self.own)(self.make(self.own))
        setattr(self.owner, self.name, self.new)

    def put_back(self) -> None:
        if vars(self.owner).get(self.name) is self.new:
            setattr(self.owner, self.name, self.own)
        self.new = None


def _check_input(original: Any) -> Any:
    """torch refuses inputs of another type than the weights'; here both become the 16-bit type in the call."""

    def check_input(self: Any, input: torch.Tensor, batch_sizes: torch.Tensor | None) -> None:
        weight = self._flat_weights[0]
        if weight is not None and input.dtype != weight.dtype and input.is_floating_point() and _core.policy_active():
            input = torch.empty(input.shape, dtype=weight.dtype, device="meta")
        original(self, input, batch_sizes)

    return check_input


def _module_cpu(original: Any) -> Any:
    """Tensor.cpu makes tensors FP32; a model that is moved keeps its types, which another context may have given it."""

    def cpu(self: Any) -> Any:
        _core.enter_none()
        try:
            return original(self)
        finally:
            _core.leave()

    return cpu


def _fast_path(original: Any) -> Any:
    """Attention in eval mode would hand weights and inputs to one function of torch's, of types that nobody casts.
    torch.compile cannot trace the question whether somebody does: its graphs have the pieces."""

    def get_fastpath_enabled() -> bool:
        return bool(original()) and not is_compiling() and not _core.policy_active()

    return get_fastpath_enabled


def _autocast_enter(original: Any) -> Any:
    """A model's `with autocast(enabled=False)` means no casts: neither torch's nor these. Outside a forward it says
    nothing about them: there it is a switch of a script that knows both."""

    def __enter__(self: Any) -> Any:
        entered = original(self)
        everywhere = not self._cache_enabled  # disable_casts in a graph
        disables = not self._enabled and _core.policy_active() and (everywhere or _core.scope_entered())
        if disables:
            _core.enter_none()
        self.__dict__.setdefault("_libamp_scopes", []).append(disables)
        return entered

    return __enter__


def _autocast_exit(original: Any) -> Any:
    def __exit__(self: Any, *error: Any) -> Any:
        scopes = self.__dict__.get("_libamp_scopes")
        if scopes and scopes.pop():
            _core.leave()
        return original(self, *error)

    return __exit__


def scope_now() -> tuple[Any, ...]:
    """(context,) whose policy holds on this thread, (None,) where none does, () where nobody was asked."""
    return _core.current_scope() or tuple(each.context for each in live() if each.patches)[-1:]


def again_in(scope: tuple[Any, ...], function: Any, args: Any, kwargs: Any) -> Any:
    """Calls a function with the policy of an earlier moment, which scope_now returned."""
    (context,) = scope
    if context is None:
        _core.enter_none()
    elif context.alive:
        context.enter()
    else:
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    finally:
        _core.leave()


def _in_this_scope(function: Any) -> Any:
    """What checkpointing will call again, in backward and perhaps on another thread, with the policy of this moment."""
    scope = scope_now()
    return (lambda *args, **kwargs: again_in(scope, function, args, kwargs)) if scope else function


def _checkpoint_reentrant(original: Any) -> Any:
    def forward(ctx: Any, run_function: Any, *rest: Any) -> Any:
        return original.__func__(ctx, _in_this_scope(run_function), *rest)

    return forward


def _checkpoint_saved(original: Any) -> Any:
    def generator(fn: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_in_this_scope(fn), *args, **kwargs)

    return generator


def _recomputation() -> list[Guard]:
    """Both kinds of torch.utils.checkpoint; the name of what runs the kind without reentrance differs by version."""
    kinds = ("_generator_impl", "_generator", "")
    names = ["_checkpoint_without_reentrant" + kind for kind in kinds]
    found = [name for name in names if hasattr(torch.utils.checkpoint, name)]
    guards = [Guard(torch.utils.checkpoint.CheckpointFunction, "forward", _checkpoint_reentrant)]
    return guards + [Guard(torch.utils.checkpoint, name, _checkpoint_saved) for name in found[:1]]


_mha = getattr(torch.backends, "mha", None)  # older torches have none
GUARDS = [
    Guard(torch.nn.RNNBase, "check_input", _check_input),
    Guard(torch.nn.Module, "cpu", _module_cpu),
    Guard(torch.autocast, "__enter__", _autocast_enter),
    Guard(torch.autocast, "__exit__", _autocast_exit),
    *_recomputation(),
    *([Guard(_mha, "get_fastpath_enabled", _fast_path)] if _mha is not None else []),
]
