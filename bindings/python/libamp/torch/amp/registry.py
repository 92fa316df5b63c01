# SPDX-License-Identifier: Apache-2.0
"""Classes of casts for the user's own functions. A decorator applies at once. A registration applies from the next
initialize.

A decorated function obeys the context that is in force when it is called, and runs without casts where none is. A
function that is registered by name is replaced in its module or class as torch's own functions are, and restored with
them. The registration overrides the cast lists.
"""
from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ... import _core
from .lists import changes

LOWER, FP32, PROMOTE = 1, 2, 3
F = TypeVar("F", bound=Callable[..., Any])


class Registration:
    """The handle that a register function returns. remove() cancels the registration from the next initialize on."""

    def __init__(self, module: Any, name: str, op_class: int, source: str = "registered") -> None:
        self.module, self.name, self.op_class, self.source = module, name, op_class, source
        self.removed = False

    def remove(self) -> None:
        """Cancels the registration: the function has the class of the cast list again, or none."""
        self.removed = True
        if self in _registered:
            _registered.remove(self)


_registered: list[Registration] = []
_edited: dict[tuple[int, str], Registration] = {}  # the changes in amp.lists at the last read


def _decorate(function: Any, op_class: int) -> Any:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    place = f"{getattr(function, '__module__', None)}:{name}"
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorate(function.__func__, op_class))
    if isinstance(function, (_core.PatchedFunction, _core.PatchedMethod)):
        function = function.__wrapped__  # the last decorator counts
    binds = inspect.isfunction(function) or inspect.ismethoddescriptor(function)
    return _core.patched(function, place, getattr(function, "__name__", name), op_class, 0, binds)


def half_function(fn: F) -> F:
    """Decorates fn: its floating tensor arguments are cast to the 16-bit type of the level. Apex's
    amp.half_function."""
    decorated: F = _decorate(fn, LOWER)
    return decorated


bfloat16_function = half_function  # ROCm's name. The level selects the type


def float_function(fn: F) -> F:
    """Decorates fn: its floating tensor arguments are cast to FP32. Apex's amp.float_function."""
    decorated: F = _decorate(fn, FP32)
    return decorated


def promote_function(fn: F) -> F:
    """Decorates fn: its floating tensor arguments are cast to the widest type among them. Apex's
    amp.promote_function."""
    decorated: F = _decorate(fn, PROMOTE)
    return decorated


def _register(module: Any, name: str, op_class: int) -> Registration:
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}.")
    if not callable(getattr(module, name)):
        raise ValueError(f"{name} in {module} is a {type(getattr(module, name)).__name__}, and no function.")
    _registered.append(Registration(module, name, op_class))
    return _registered[-1]


def register_half_function(module: Any, name: str) -> Registration:
    """Registers `module.name` for casts to the level's 16-bit type, from the next initialize on.

    module: a module or a class. name: string. Returns a Registration. Raises ValueError if there is no such function.
    """
    return _register(module, name, LOWER)


register_bfloat16_function = register_half_function


def register_float_function(module: Any, name: str) -> Registration:
    """Registers `module.name` for casts to FP32, from the next initialize on. Arguments are those of
    register_half_function."""
    return _register(module, name, FP32)


def register_promote_function(module: Any, name: str) -> Registration:
    """Registers `module.name` for casts to the widest type among its arguments, from the next initialize on. Arguments
    are those of register_half_function."""
    return _register(module, name, PROMOTE)


def _edits() -> Iterable[Registration]:
    """Returns the changes that a script made in amp.lists. A change that the script has undone is removed."""
    found: dict[tuple[int, str], Registration] = {}
    for module, name, op_class in changes():
        key = id(module), name
        known = _edited.get(key)
        same = known is not None and known.op_class == op_class
        found[key] = known if known and same else Registration(module, name, op_class, "changed in amp.lists")
    for key, known in _edited.items():
        known.removed = key not in found
    _edited.clear()
    _edited.update(found)
    return found.values()


def wanted(lists: str) -> list[Registration]:
    """Returns the registrations in force, the last one of each name. Changes in amp.lists precede them."""
    edited = _edits() if lists == "apex" else []
    return list({(id(each.module), each.name): each for each in (*edited, *_registered)}.values())


def stand_in(raw: Any, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Returns two objects: the function that `make` makes from `raw`, and the entry of the class or module that
    replaces raw."""
    if isinstance(raw, (staticmethod, classmethod)):
        made = make(raw.__func__)
        return made, type(raw)(made)
    if isinstance(raw, types.ClassMethodDescriptorType):  # in C: torch's Function.apply
        made = make(raw)
        return made, classmethod(made)
    if not callable(raw):  # functools.partialmethod and similar

        def bound(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return raw.__get__(self, type(self))(*args, **kwargs)

        made = make(bound)
        return made, made
    made = make(raw)
    return made, made
