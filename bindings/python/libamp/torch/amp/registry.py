# SPDX-License-Identifier: Apache-2.0
"""The user's own functions: decorators that give one a class at once, and registrars that wait for the next initialize.

A decorated function obeys whichever context holds when it is called, and runs as it comes where none does. What is
registered by name is replaced in its module as torch's own functions are, and put back with them; over what a list says
of it.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ... import _core
from .lists import changes

LOWER, FP32, PROMOTE = 1, 2, 3
F = TypeVar("F", bound=Callable[..., Any])


class Registration(NamedTuple):
    module: Any
    name: str
    op_class: int


_waiting: list[Registration] = []


def _decorate(function: Any, op_class: int) -> Any:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    place = f"{getattr(function, '__module__', None)}:{name}"
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorate(function.__func__, op_class))
    if isinstance(function, (_core.PatchedFunction, _core.PatchedMethod)):
        function = function.__wrapped__  # the last word counts
    binds = inspect.isfunction(function) or inspect.ismethoddescriptor(function)
    return _core.patched(function, place, getattr(function, "__name__", name), op_class, 0, binds)


def half_function(fn: F) -> F:
    """Floating tensors among the arguments become the level's 16-bit type."""
    decorated: F = _decorate(fn, LOWER)
    return decorated


bfloat16_function = half_function  # ROCm's name; the level says which of the two types


def float_function(fn: F) -> F:
    """Floating tensors among the arguments become FP32."""
    decorated: F = _decorate(fn, FP32)
    return decorated


def promote_function(fn: F) -> F:
    """Floating tensors among the arguments become the widest type among them."""
    decorated: F = _decorate(fn, PROMOTE)
    return decorated


def _register(module: Any, name: str, op_class: int) -> None:
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}.")
    if not callable(getattr(module, name)):
        raise ValueError(f"{name} in {module} is a {type(getattr(module, name)).__name__}, and no function.")
    _waiting.append(Registration(module, name, op_class))


def register_half_function(module: Any, name: str) -> None:
    """half_function for `module.name`, from the next initialize on."""
    _register(module, name, LOWER)


register_bfloat16_function = register_half_function


def register_float_function(module: Any, name: str) -> None:
    """float_function for `module.name`, from the next initialize on."""
    _register(module, name, FP32)


def register_promote_function(module: Any, name: str) -> None:
    """promote_function for `module.name`, from the next initialize on."""
    _register(module, name, PROMOTE)


def take(lists: str) -> list[Registration]:
    """What is waiting, which is then forgotten: initialize asks once. Before it what a script changed in amp.lists."""
    edited = [Registration(*change) for change in changes()] if lists == "apex" else []
    taken = [*edited, *_waiting]
    _waiting.clear()
    return taken
