# SPDX-License-Identifier: Apache-2.0
"""Patches places where torch itself must know about casts: its type checks, its compilers, its autocast.

Each guard replaces one attribute while a context patches.
"""
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
    """Replaces owner.name by `make(original)`."""

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
    """Removes torch's check that inputs have the type of the weights. Both become the 16-bit type in the call."""

    def check_input(self: Any, input: torch.Tensor, batch_sizes: torch.Tensor | None) -> None:
        weight = self._flat_weights[0]
        if weight is not None and input.dtype != weight.dtype and input.is_floating_point() and _core.policy_active():
            input = torch.empty(input.shape, dtype=weight.dtype, device="meta")
        original(self, input, batch_sizes)

    return check_input


def _module_cpu(original: Any) -> Any:
    """Keeps the types of a model that is moved, although Tensor.cpu casts to FP32. Another context may have set
    them."""

    def cpu(self: Any) -> Any:
        _core.enter_none()
        try:
            return original(self)
        finally:
            _core.leave()

    return cpu


def _fast_path(original: Any) -> Any:
    """Disables a fast path of attention in eval mode that passes weights and inputs to one torch function without
    casts. torch.compile cannot trace this check, so its graphs use the separate operations."""

    def get_fastpath_enabled() -> bool:
        return bool(original()) and not is_compiling() and not _core.policy_active()

    return get_fastpath_enabled


def _autocast_enter(original: Any) -> Any:
    """Makes a model's `with autocast(enabled=False)` disable libamp's casts too. Outside a forward it has no such
    effect: there a script that knows both uses it as a switch."""

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
    """Returns (context,) of the policy on this thread, (None,) without one, () if nothing patches."""
    return _core.current_scope() or tuple(each.context for each in live() if each.patches)[-1:]


def again_in(scope: tuple[Any, ...], function: Any, args: Any, kwargs: Any) -> Any:
    """Calls a function with the policy of an earlier moment, from scope_now."""
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
    """Binds the present policy to a function that checkpointing calls again in backward, perhaps on another thread."""
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
    """Covers both kinds of torch.utils.checkpoint. The function that runs the non-reentrant kind differs by version."""
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
