# SPDX-License-Identifier: Apache-2.0
"""Finds functions by identity wherever a program keeps them, and puts others in their place.

`from torch.nn.functional import softmax` binds a name in the importing module, `class Net: act = F.gelu` one in a
class, `def __init__(self, act=F.gelu)` a default, `self.act = F.gelu` an attribute, `ACTS = {"gelu": F.gelu}` an item:
none of them sees that torch's own name has changed. torch's own modules are left alone but for the places that the cast
lists name.
"""
from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable
from typing import Any

_LEFT_ALONE = ("torch", "libamp", "numpy", "builtins", "sys")
_MISSING = object()


class Sweep:
    """One pass: `swap` maps id(old) to (old, new)."""

    def __init__(self, swap: dict[int, tuple[Any, Any]]) -> None:
        self.swap = swap
        self.seen: set[int] = set()

    def new(self, value: Any) -> Any:
        """What goes in the place of `value`, or _MISSING."""
        found = self.swap.get(id(value))
        return found[1] if found is not None and found[0] is value else _MISSING

    def modules(self, everywhere: bool = False) -> None:
        """`everywhere`: torch's own too, some of which it imports late."""
        for name, module in list(sys.modules.items()):
            left_alone = ("libamp",) if everywhere else _LEFT_ALONE
            if not isinstance(module, types.ModuleType):
                continue
            names = {name, str(vars(module).get("__name__", name))}  # apex.amp is a second name of libamp.torch.amp
            if not any(each.split(".", 1)[0] in left_alone for each in names):
                self.namespace(vars(module), owner=name)

    def namespace(self, names: dict[str, Any], owner: str | None = None) -> None:
        """A module's or an instance's dict; `owner`: the module whose classes are looked into."""
        for key, value in list(names.items()):
            new = self.new(value)
            if new is not _MISSING:
                names[key] = new
                continue
            kind = type(value)
            if kind in _LOOKED_INTO:
                _LOOKED_INTO[kind](self, value)
            elif owner is not None and issubclass(kind, type) and value.__module__ == owner:  # isinstance would ask value
                self.cls(value)

    def cls(self, cls: type) -> None:
        if id(cls) in self.seen:
            return
        self.seen.add(id(cls))
        for key, value in list(vars(cls).items()):
            kind = type(value)  # asking the value itself may run code of its own
            wrapped = value.__func__ if kind in (staticmethod, classmethod) else value
            new = self.new(wrapped)
            if new is not _MISSING:
                setattr(cls, key, kind(new) if wrapped is not value else new)
            elif type(wrapped) is types.FunctionType:
                self.function(wrapped)
            elif kind in (dict, list):
                _LOOKED_INTO[kind](self, value)
            elif issubclass(kind, type) and value.__module__ == cls.__module__:
                self.cls(value)

    def function(self, function: types.FunctionType) -> None:
        """Its default arguments, and what it closes over."""
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        defaults = function.__defaults__
        if defaults and any(self.new(value) is not _MISSING for value in defaults):
            function.__defaults__ = tuple(self._or_same(value) for value in defaults)
        keywords = function.__kwdefaults__ or {}
        for key, value in keywords.items():
            keywords[key] = self._or_same(value)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # empty
                continue
            new = self.new(value)
            if new is not _MISSING:
                cell.cell_contents = new
            elif type(value) is types.FunctionType:
                self.function(value)

    def partial(self, partial: functools.partial[Any]) -> None:
        parts = (partial.func, *partial.args, *partial.keywords.values())
        if any(self.new(part) is not _MISSING for part in parts):
            keywords = {key: self._or_same(value) for key, value in partial.keywords.items()}
            args = tuple(self._or_same(value) for value in partial.args)
            partial.__setstate__((self._or_same(partial.func), args, keywords, vars(partial) or None))  # type: ignore[attr-defined]

    def mapping(self, mapping: dict[Any, Any]) -> None:
        for key, value in list(mapping.items()):
            new = self.new(value)
            if new is not _MISSING:
                mapping[key] = new
            elif type(value) is functools.partial:
                self.partial(value)

    def sequence(self, sequence: list[Any]) -> None:
        for i, value in enumerate(sequence):
            new = self.new(value)
            if new is not _MISSING:
                sequence[i] = new
            elif type(value) is functools.partial:
                self.partial(value)

    def torch_modules(self, models: Iterable[Any]) -> None:
        """The attributes of nn.Modules, all the way down, and the classes they are of."""
        for model in models:
            for module in model.modules():
                self.namespace(vars(module))
                for cls in type(module).__mro__:
                    if cls.__module__.split(".", 1)[0] not in _LEFT_ALONE:
                        self.cls(cls)

    def _or_same(self, value: Any) -> Any:
        new = self.new(value)
        return value if new is _MISSING else new


_LOOKED_INTO: dict[type, Any] = {
    types.FunctionType: Sweep.function,
    functools.partial: Sweep.partial,
    dict: Sweep.mapping,
    list: Sweep.sequence,
}
