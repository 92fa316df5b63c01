# SPDX-License-Identifier: Apache-2.0
"""What initialize does to a model: its class becomes one whose forward casts and enters the context's scope. No closure lies
on the module, so it can be copied, pickled, replicated and wrapped."""
from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ._casting import cast_tree
from .session import Session, live


class Forward:
    """What a wired forward does: types of inputs and outputs (None: as they come), and whose scope holds."""

    def __init__(self, inputs: torch.dtype | None, outputs: torch.dtype | None, session: Session | None = None) -> None:
        self.inputs, self.outputs, self.session = inputs, outputs, session
        self.own: Callable[..., Any] | None = None  # a forward that lay on the instance

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        return self  # a copy of the model obeys the same context

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.inputs, self.outputs)  # a file has no context

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's own forward between the casts."""
        if self.inputs is not None:
            args = tuple(cast_tree(arg, self.inputs) for arg in args)
            kwargs = {name: cast_tree(arg, self.inputs) for name, arg in kwargs.items()}
        session = self.session
        if session is None or not session.alive:
            out = forward(*args, **kwargs)
        else:
            if not session.forward_seen:
                session.before_first_forward()
            if session.masters:
                session.context.follow()
            session.context.enter()
            try:
                out = forward(*args, **kwargs)
            finally:
                session.context.leave()
        return out if self.outputs is None else cast_tree(out, self.outputs)


class Wired:
    """Goes before a model's own class, behind one with a forward that looks like the model's own."""

    _amp_forward: Any  # a Forward, of which torch.jit need not know

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script compiles the model's own forward, which runs in the types that arrive."""
        plain: Any = object.__new__(_own_class(type(self)))
        plain.__dict__.update(self.__dict__, _modules=self.__dict__["_modules"].copy())
        own = plain.__dict__.pop("_amp_forward").own
        if own is not None:
            plain.__dict__["forward"] = own
        return plain

    def __reduce_ex__(self, protocol: Any) -> Any:
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

        own = inspect.getattr_static(cls, "forward", None)
        if callable(own):  # a scripted module's is not
            functools.update_wrapper(forward, own)
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "forward": forward}
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
    """From here on the model's forward is `spec`'s. Returns the way back."""
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


# ---- state dicts in FP32 ----


def _keeper_of(tensor: torch.Tensor) -> Session | None:
    """The session that has this parameter's master."""
    return next((session for session in live() if id(tensor) in session.masters), None)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, param in module._parameters.items():
        if param is not None:
            yield name, param
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield name, buffer


def widen_state(module: nn.Module, destination: Any, prefix: str, local_metadata: Any) -> Any:
    """A state_dict hook of every module: 16-bit entries of its own in FP32, the master's values where there is one."""
    for name, tensor in _own_tensors(module):
        value = destination.get(prefix + name)
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            keeper = _keeper_of(tensor)
            destination[prefix + name] = value.float() if keeper is None else keeper.masters[id(tensor)].detach()
    return destination


def load_masters(module: nn.Module, state_dict: Any, prefix: str, *rest: Any) -> None:
    """Before a module loads: masters take the values as they are in the file, the 16-bit parameters are rounded after."""
    for name, param in module._parameters.items():
        value = state_dict.get(prefix + name)
        keeper = _keeper_of(param) if param is not None else None
        if keeper is not None and isinstance(value, torch.Tensor) and value.shape == param.shape:
            with torch.no_grad():
                keeper.masters[id(param)].copy_(value)
            keeper.agree(param, loads=True)


class LoadHook:
    """load_masters for one module. torch calls such hooks without their module in some versions: so it is kept, weakly."""

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)

    def __call__(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        module = self.module()
        if module is not None:
            load_masters(module, state_dict, prefix)

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()  # copies and files have no masters


def _nothing() -> Callable[..., None]:
    return _do_nothing


def _do_nothing(*args: Any) -> None:
    """What a copied model has in the place of a LoadHook."""


def hook_states(model: nn.Module) -> Callable[[], None]:
    """state_dict of the model and of each module inside is FP32, and loading one reaches the masters."""
    handles: list[Any] = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # these take no hooks
        if any(hook is widen_state for hook in module._state_dict_hooks.values()):
            continue
        handles.append(module._register_state_dict_hook(widen_state))
        handles.append(module._register_load_state_dict_pre_hook(LoadHook(module)))

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo
