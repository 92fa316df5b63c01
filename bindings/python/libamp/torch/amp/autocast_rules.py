# SPDX-License-Identifier: Apache-2.0
"""Applies rules for torch.autocast that authors of kernels provide, at O1 and O4.

`custom_fwd` and `custom_bwd` check whether autocast is on. A decorated function has the author's function in a closure
cell. While a context patches, that cell has a function that uses the policy instead. The class may predate the import
of libamp, so decorated functions are found through the subclasses of autograd.Function.

`torch.library.register_autocast` adds a kernel under the dispatch key of autocast. torch.autocast is on only around the
call of such an op, and the op's own code runs without casts, as under autocast.
"""
from __future__ import annotations

import contextlib
import functools
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.amp.autocast_mode
import torch.cuda.amp.autocast_mode

from ... import _core
from ._casting import disable_casts
from .compiling import is_compiling
from .session import live
from .torch_checks import Guard, again_in, scope_now

# ---- custom_fwd, custom_bwd ----


def _nested_code(function: Any, name: str) -> Iterator[types.CodeType]:
    code = getattr(function, "__wrapped__", function).__code__
    yield from (each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == name)


def _codes(decorator: str, inner: str) -> frozenset[types.CodeType]:
    """Returns the code of the functions that a decorator makes. Before torch 2.4 torch.cuda.amp has its own."""
    homes = (torch.amp.autocast_mode, torch.cuda.amp.autocast_mode)
    makers = [getattr(home, decorator) for home in homes if hasattr(home, decorator)]
    return frozenset(code for maker in makers for code in _nested_code(maker, inner))


_FORWARD, _BACKWARD = _codes("custom_fwd", "decorate_fwd"), _codes("custom_bwd", "decorate_bwd")


def _policy_active() -> bool:
    return _core.policy_active()


_policy_active._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as of when the graph is made


def _has_tensor_on(value: Any, device: str) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == device
    if isinstance(value, dict):
        return any(_has_tensor_on(item, device) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_has_tensor_on(item, device) for item in value)


def _make_forward(own: Any, device: str | None, dtype: torch.dtype | None, cast: Any) -> Callable[..., Any]:
    """Returns the function for custom_fwd to call instead of `own`. An annotation for another device than that of the
    arguments has no effect, as under autocast."""
    kind = () if device is None else (device,)

    def forward(*args: Any, **kwargs: Any) -> Any:
        here = _policy_active() and _has_tensor_on((args[1:], kwargs), device or "cuda")
        if is_compiling():
            if not here or dtype is None:
                return own(*args, **kwargs)
            with disable_casts():
                return own(*cast(args, *kind, dtype), **cast(kwargs, *kind, dtype))
        context: Any = args[0]
        if not here or dtype is None:
            context._libamp_scope = scope_now() if _policy_active() else (None,)
            return own(*args, **kwargs)
        context._libamp_scope = (None,)
        with disable_casts():
            return own(*cast(args, *kind, dtype), **cast(kwargs, *kind, dtype))

    return forward


def _make_backward(own: Any) -> Callable[..., Any]:
    """Returns the function for custom_bwd to call: `own` with the policy of its forward."""

    def backward(*args: Any, **kwargs: Any) -> Any:
        scope = () if is_compiling() else getattr(args[0], "_libamp_scope", ())
        return again_in(scope, own, args, kwargs) if scope else own(*args, **kwargs)

    return backward


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _annotated(function: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """Yields the functions of custom_fwd and custom_bwd in `function`: itself, or below other decorators."""
    function = getattr(function, "__func__", function)  # a staticmethod's
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    if function.__code__ in _FORWARD or function.__code__ in _BACKWARD:
        yield function
    inside: list[Any] = [vars(function).get("__wrapped__")]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty
            inside.append(cell.cell_contents)
    for each in inside:
        yield from _annotated(each, seen)


def _cell(function: types.FunctionType) -> types.CellType:
    """Returns the closure cell of the author's function."""
    return _cells(function)["bwd" if function.__code__ in _BACKWARD else "fwd"]


def _answer(function: types.FunctionType) -> None:
    cells = {name: cell.cell_contents for name, cell in _cells(function).items()}
    own = _cell(function).cell_contents
    if function.__code__ in _BACKWARD:
        new = _make_backward(own)
    else:
        new = _make_forward(own, cells.get("device_type"), cells["cast_inputs"], function.__globals__["_cast"])
    new.__wrapped__ = own  # type: ignore[attr-defined]
    _cell(function).cell_contents = new


def _subclasses(cls: type) -> Iterator[type]:
    each: type
    for each in type.__subclasses__(cls):
        yield each
        yield from _subclasses(each)


class Annotations:
    """All decorated functions of the process, patched and restored as a Guard."""

    def __init__(self) -> None:
        self.new: weakref.WeakSet[types.FunctionType] | None = None  # those that were answered

    def put(self) -> None:
        if self.new is not None:
            return
        self.new = weakref.WeakSet()
        for cls in _subclasses(torch.autograd.Function):
            self.look(cls)

    def look(self, cls: type) -> None:
        """Searches a class's own methods."""
        seen: set[int] = set()
        for value in list(vars(cls).values()) if self.new is not None else ():
            for function in _annotated(value, seen):
                if self.new is not None and function not in self.new:
                    self.new.add(function)
                    _answer(function)

    def put_back(self) -> None:
        for function in self.new or ():
            _cell(function).cell_contents = _cell(function).cell_contents.__wrapped__
        self.new = None


_annotations = Annotations()


def _later_classes(original: Any) -> Any:
    def __init__(cls: Any, *args: Any, **kwargs: Any) -> None:
        original(cls, *args, **kwargs)
        _annotations.look(cls)

    return __init__


# ---- ops with a kernel for autocast ----

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU"}
_registered: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key


def _devices(values: Any) -> set[str]:
    if isinstance(values, torch.Tensor):
        return {values.device.type}
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return set()
    return set().union(*map(_devices, values))


@functools.cache
def _has_half(kind: str) -> bool:
    """Returns True if autocast of this device supports float16. Before torch 2.4 the CPU's supports only bfloat16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(torch.autocast(kind, dtype=torch.float16)._enabled)


def _autocast(kind: str) -> torch.autocast:
    """Opens autocast in the 16-bit type of the policy on this thread."""
    scope = scope_now()
    names = [session.low_type for session in live() if (session.context,) == scope]
    low = getattr(torch, names[0]) if names else None
    return torch.autocast(kind, dtype=None if low is torch.float16 and not _has_half(kind) else low)


class _Apart:
    """The apply of a node without casts, which were off in its forward. It does not keep the node alive."""

    def __init__(self, node: Any) -> None:
        self.node, self.function = weakref.ref(node), type(node).apply

    def __call__(self, *args: Any) -> Any:
        with disable_casts():
            return self.function(self.node(), *args)


def _keep_apart(results: Any) -> None:
    for result in results if isinstance(results, (list, tuple)) else (results,):
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if isinstance(node, torch.autograd.function.BackwardCFunction):  # a node with a Python backward
            vars(node).setdefault("apply", _Apart(node))


def _call_op(names_of: Callable[[Any], list[str]]) -> Callable[[Any], Any]:
    """Wraps the two kinds of callables of torch.ops."""

    def make(original: Any) -> Any:
        def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            names = () if is_compiling() or not _core.policy_active() else names_of(self)
            if not names or names[0].startswith(("aten::", "prim")):
                return original(self, *args, **kwargs)
            kinds = [kind for kind in _devices((args, kwargs)) if kind in _KEYS]
            kinds = [kind for kind in kinds if any(_registered(name, _KEYS[kind]) for name in names)]
            if not kinds:
                return original(self, *args, **kwargs)
            with contextlib.ExitStack() as stack:
                for kind in kinds:
                    stack.enter_context(_autocast(kind))
                stack.enter_context(disable_casts())
                results = original(self, *args, **kwargs)
            _keep_apart(results)
            return results

        return __call__

    return make


def _names_of_packet(packet: Any) -> list[str]:
    name = packet._qualified_op_name
    return [f"{name}.{overload}" if overload else name for overload in packet._overload_names]


GUARDS = [
    _annotations,
    Guard(type(torch.autograd.Function), "__init__", _later_classes),
    Guard(torch._ops.OpOverload, "__call__", _call_op(lambda op: [op.name()])),
    Guard(torch._ops.OpOverloadPacket, "__call__", _call_op(_names_of_packet)),
]
