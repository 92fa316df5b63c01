# SPDX-License-Identifier: Apache-2.0
"""Finds functions by identity wherever a program refers to them, and replaces them.

`from torch.nn.functional import softmax` binds a name in the importing module, `class Net: act = F.gelu` one in a
class, `def __init__(self, act=F.gelu)` a default, `self.act = F.gelu` an attribute, `ACTS = {"gelu": F.gelu}` an item.
None of them notices that torch's own name has changed. torch's modules are not searched, except for the places that the
cast lists name.
"""
from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from collections.abc import Container, Iterable
from typing import Any

_LEFT_ALONE = ("torch", "libamp", "numpy", "builtins", "sys")
_STRANGERS = ("sympy", "mpmath")  # imported by torch, without functions of it, and half of a script's modules
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")
_BUILTINS = vars(builtins)
_MISSING = object()
_BOUND = (types.MethodType, types.BuiltinMethodType)


def _is_stranger(root: str, module: types.ModuleType) -> bool:
    """Returns True if the module never has functions of torch: the standard library, unless a script's file has that
    name."""
    file = vars(module).get("__file__")
    if root in sys.stdlib_module_names:
        return file is None or str(file).startswith(_PYTHON + root)
    return root in _STRANGERS


class Sweep:
    """One pass. `swap` maps id(old) to (old, new). `bound`: (old, new) methods bound to classes, which are equal, but
    never the same object twice."""

    def __init__(self, swap: dict[int, tuple[Any, Any]], bound: Iterable[tuple[Any, Any]] = ()) -> None:
        self.swap = swap
        self.bound = {(id(old.__self__), old): new for old, new in bound}
        self.seen: set[int] = set()
        # A program has half a million values, and few are of a type that can match.
        kinds = [type(old) for old, _new in swap.values()]
        self.kinds = frozenset([*kinds, *(type(old) for _id, old in self.bound)])
        self.kinds_within = self.kinds | {functools.partial}  # types of values in dicts and lists
        self.plain = {str, int, float, bool, type(None), tuple, types.ModuleType}  # no classes, nothing inside (grows)

    def new(self, value: Any) -> Any:
        """Returns the replacement of `value`, or _MISSING."""
        found = self.swap.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        if self.bound and type(value) in _BOUND and isinstance(value.__self__, type):
            return self.bound.get((id(value.__self__), value), _MISSING)
        return _MISSING

    def modules(self, back: bool = False, present: Container[str] = ()) -> None:
        """Sweeps all modules. `back`: also those that are usually skipped, which may have been imported in between.
        `present`: modules of which only names are searched, because their classes are unchanged."""
        for name, module in list(sys.modules.items()):
            if not isinstance(module, types.ModuleType):
                continue
            own = str(vars(module).get("__name__", name))  # apex.amp is a second name of libamp.torch.amp
            roots = {name.partition(".")[0], own.partition(".")[0]}
            if all(_is_stranger(root, module) for root in roots):
                continue
            left_alone = not roots.isdisjoint(_LEFT_ALONE)
            if "libamp" not in roots and (back or not left_alone):
                self.namespace(vars(module), owner=None if left_alone and name in present else name)

    def namespace(self, names: dict[str, Any], owner: str | None = None) -> None:
        """Sweeps the dict of a module or instance. `owner`: the module whose classes are searched."""
        kinds, plain, swap = self.kinds, self.plain, self.swap
        for key, value in list(names.items()):
            kind = type(value)
            if kind in kinds and (id(value) in swap or kind in _BOUND):
                new = self.new(value)
                if new is not _MISSING:
                    names[key] = new
                    continue
            if kind in plain:
                continue
            if kind is types.FunctionType:
                if value.__defaults__ or value.__closure__ or value.__kwdefaults__:
                    self.function(value)
            elif kind in _LOOKED_INTO:
                _LOOKED_INTO[kind](self, value)
            elif owner is not None and self.is_class(kind) and value.__module__ == owner:
                self.cls(value)

    def is_class(self, kind: type) -> bool:
        """Returns True for a class, by the type of the value. isinstance could run the value's own code."""
        if issubclass(kind, type):
            return True
        if kind not in self.kinds and kind not in _LOOKED_INTO and kind not in (staticmethod, classmethod):
            self.plain.add(kind)
        return False

    def cls(self, cls: type) -> None:
        if id(cls) in self.seen:
            return
        self.seen.add(id(cls))
        kinds, plain, swap = self.kinds, self.plain, self.swap
        for key, value in list(vars(cls).items()):
            kind = type(value)
            if kind in plain:
                continue
            method = kind is staticmethod or kind is classmethod
            wrapped = value.__func__ if method else value
            inner = type(wrapped) if method else kind
            new = self.new(wrapped) if inner in kinds and (id(wrapped) in swap or inner in _BOUND) else _MISSING
            if new is not _MISSING:
                setattr(cls, key, kind(new) if method else new)
            elif inner is types.FunctionType:
                if wrapped.__defaults__ or wrapped.__closure__ or wrapped.__kwdefaults__:
                    self.function(wrapped)
            elif kind is dict or kind is list:
                _LOOKED_INTO[kind](self, value)
            elif not method and self.is_class(kind) and value.__module__ == cls.__module__:
                self.cls(value)

    def function(self, function: types.FunctionType) -> None:
        """Sweeps the default arguments and the closure of a function."""
        defaults, keywords, closure = function.__defaults__, function.__kwdefaults__, function.__closure__
        if not (defaults or keywords or closure) or id(function) in self.seen:
            return
        self.seen.add(id(function))
        if defaults and not self.kinds.isdisjoint(map(type, defaults)):
            fresh = tuple(self._or_same(value) for value in defaults)
            if any(new is not old for new, old in zip(fresh, defaults)):
                function.__defaults__ = fresh
        if keywords:
            for key, value in keywords.items():
                keywords[key] = self._or_same(value)
        for cell in closure or ():
            try:
                value = cell.cell_contents
            except ValueError:  # empty
                continue
            kind = type(value)
            new = self.new(value) if kind in self.kinds else _MISSING
            if new is not _MISSING:
                cell.cell_contents = new
            elif kind is types.FunctionType:
                self.function(value)

    def partial(self, partial: functools.partial[Any]) -> None:
        parts = (partial.func, *partial.args, *partial.keywords.values())
        if any(self.new(part) is not _MISSING for part in parts):
            keywords = {key: self._or_same(value) for key, value in partial.keywords.items()}
            args = tuple(self._or_same(value) for value in partial.args)
            state = (self._or_same(partial.func), args, keywords, vars(partial) or None)
            partial.__setstate__(state)  # type: ignore[attr-defined]

    def mapping(self, mapping: dict[Any, Any]) -> None:
        if mapping is _BUILTINS:  # a name in every module
            if id(mapping) in self.seen:
                return
            self.seen.add(id(mapping))
        if self.kinds_within.isdisjoint(map(type, mapping.copy().values())):
            return
        for key, value in list(mapping.items()):
            new = self.new(value)
            if new is not _MISSING:
                mapping[key] = new
            elif type(value) is functools.partial:
                self.partial(value)

    def sequence(self, sequence: list[Any]) -> None:
        if self.kinds_within.isdisjoint(map(type, sequence)):
            return
        for i, value in enumerate(sequence):
            new = self.new(value)
            if new is not _MISSING:
                sequence[i] = new
            elif type(value) is functools.partial:
                self.partial(value)

    def torch_modules(self, models: Iterable[Any]) -> None:
        """Sweeps the attributes of nn.Modules, at all depths, and of their classes."""
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
