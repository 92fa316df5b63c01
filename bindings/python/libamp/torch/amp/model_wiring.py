# SPDX-License-Identifier: Apache-2.0
"""Wires models in initialize: a derived class has a forward that casts and enters the scope of the context. The module
has no closure, so it can be copied, pickled, replicated and wrapped."""
from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ... import _core
from . import averages, kept_buffers, model_states
from ._casting import cast_tree
from .compiling import root, run_as_it_is, set_compiler
from .session import Session


class Forward:
    """A wired forward: the types of inputs and outputs (None: unchanged), and the session."""

    def __init__(self, inputs: torch.dtype | None, outputs: torch.dtype | None, session: Session | None = None) -> None:
        self.inputs, self.outputs, self.session = inputs, outputs, session
        self.own: Callable[..., Any] | None = None  # a forward in the dict of the instance
        self._roots = (root(), root())  # with casts, and where casts are disabled

    def in_fp32(self) -> Forward:
        """Returns the Forward of a copy with FP32 weights."""
        made = Forward(None if self.inputs is None else torch.float32, self.outputs)
        made.own = self.own
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        return self  # a copy of the model obeys the same context

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.inputs, self.outputs)  # a file has no context

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the model's own forward between the casts. torch.compile traces only that forward. The code around it
        reads masters and enters scopes, and is not compiled."""
        compiler = set_compiler(None)
        try:
            if self.session is not None and self.session.looks:
                self.session.mistakes.forward(getattr(forward, "__self__", None))
            observer = self.session.observer if self.session is not None else None
            if observer is not None and not observer.enter(getattr(forward, "__self__", None), compiler is not None):
                observer = None
            args, kwargs = self._arriving(args, kwargs)
            entered = self._enter()
            try:
                if compiler is not None and entered is not None:
                    forward = functools.partial(self._roots[_core.current_scope() == (None,)], forward)
                set_compiler(compiler)
                out = forward(*args, **kwargs)
            except RuntimeError as error:
                better = kept_buffers.explained(error, getattr(forward, "__self__", None))
                if better is None:
                    raise
                raise better from error
            finally:
                set_compiler(None)
                if observer is not None:
                    observer.leave()
                if entered is not None:
                    entered.leave()
            return out if self.outputs is None else cast_tree(out, self.outputs)
        finally:
            set_compiler(compiler)

    def _arriving(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.inputs is None:
            return args, kwargs
        cast = tuple(cast_tree(arg, self.inputs) for arg in args)
        return cast, {name: cast_tree(arg, self.inputs) for name, arg in kwargs.items()}

    def _enter(self) -> Any:
        """Returns the context of the entered scope, None without a session in force."""
        session = self.session
        if session is None or not session.alive:
            return None
        if not session.forward_seen:
            session.before_first_forward()
        session.follow()
        session.context.enter_forward()
        return session.context


run_as_it_is(Forward.run.__code__)


class Wired:
    """Base class before the model's own, after one whose forward resembles the model's own."""

    _amp_forward: Any  # a Forward, hidden from torch.jit

    def __prepare_scriptable__(self) -> Any:
        """Makes torch.jit.script compile the model's own forward, which runs in the types that it receives."""
        plain: Any = object.__new__(_own_class(type(self)))
        plain.__dict__.update(self.__dict__, _modules=self.__dict__["_modules"].copy())
        own = plain.__dict__.pop("_amp_forward").own
        if own is not None:
            plain.__dict__["forward"] = own
        return plain

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        session = self._amp_forward.session
        before = {name: param.dtype for name, param in self.named_parameters()}  # type: ignore[attr-defined]
        with kept_buffers.staying(self):
            result = super()._apply(*args, **kwargs)  # type: ignore[misc]
        if session is not None and session.mistakes is not None:
            session.mistakes.applied(self, before)
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        model_states.settle_copy(self)
        session = self._amp_forward.session
        if session is not None and session.alive:
            session.follow()
            averages.serve()
        reduced: Any = super().__reduce_ex__(protocol)
        function, args, *rest = reduced
        plain = tuple(_own_class(arg) if isinstance(arg, type) else arg for arg in args)
        return (_rebuild, (function, plain), *rest)


_wired: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _own_class(cls: type) -> type:
    return cls.__mro__[2] if issubclass(cls, Wired) else cls


def _wired_class(cls: type) -> type:
    if cls not in _wired:

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            spec = self._amp_forward
            return spec.run(spec.own or super(Wired, self).forward, args, kwargs)

        run_as_it_is(forward.__code__)
        own = inspect.getattr_static(cls, "forward", None)
        if callable(own):  # a scripted module's is not
            functools.update_wrapper(forward, own)
        names = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "forward": forward,
        }
        _wired[cls] = type(cls.__name__, (Wired, cls), names)
    return _wired[cls]


def _rebuild(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    made = function(*args)
    made.__class__ = _wired_class(type(made))
    return made


def _hook_inputs(module: nn.Module, args: tuple[Any, ...]) -> Any:
    spec = module._amp_forward
    return args if spec.inputs is None else tuple(cast_tree(arg, spec.inputs) for arg in args)


def _hook_outputs(module: nn.Module, args: Any, out: Any) -> Any:
    spec = module._amp_forward
    return out if spec.outputs is None else cast_tree(out, spec.outputs)


def wire(model: nn.Module, spec: Forward) -> Callable[[], None]:
    """Replaces the model's forward by `spec`'s. Returns the undo function."""
    cls = _own_class(type(model))
    before = model.__dict__.get("_amp_forward")
    own = model.__dict__.pop("forward", None)
    spec.own = own
    model.__dict__["_amp_forward"] = spec
    hooks: list[Any] = []
    try:
        model.__class__ = _wired_class(cls)
    except TypeError:  # compiled modules keep their class
        hooks = [model.register_forward_pre_hook(_hook_inputs), model.register_forward_hook(_hook_outputs)]

    def undo() -> None:
        if model.__dict__.get("_amp_forward") is not spec:
            return  # initialised again since
        for hook in hooks:
            hook.remove()
        if own is not None:
            model.__dict__["forward"] = own
        if before is not None and before.session is not None and before.session.alive:
            model.__dict__["_amp_forward"] = before
            return
        del model.__dict__["_amp_forward"]
        if not hooks:
            model.__class__ = cls

    return undo
