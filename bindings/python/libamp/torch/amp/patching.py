# SPDX-License-Identifier: Apache-2.0
"""Patches torch's functions at O1 and O4: which ones, in which places, and how they are restored.

The lists, classes and rulings are the C library's. This file only knows where PyTorch has the named functions. A
patched function looks up the policy of its thread at each call. Without one it runs its original, 30 ns slower. The
replacements belong to all contexts together: the first context that patches installs them, the end of the last removes
them.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from ... import _core
from . import autocast_rules, products, registry, torch_checks
from .compiling import Graphs, apart
from .in_fp32 import in_fp32
from .sweep import Sweep

LISTS = {"apex": 1, "torch": 2}
_BY_LIST, _LEAVE = 0, 6
_TYPES = {1: "Float", 2: "Half", 3: "BFloat16", 4: "Double"}

# Bits of amp_list_op.modules, and the place of each.
_FUNCTIONAL, _TORCH, _TENSOR, _VF, _LINALG, _NN, _FFT = 1, 2, 4, 8, 16, 32, 64
_PLACES = {
    _FUNCTIONAL: "torch.nn.functional",
    _TORCH: "torch",
    _TENSOR: "torch:Tensor",
    _VF: "torch:_VF",
    _LINALG: "torch.linalg",
    _NN: "torch._C._nn",
    _FFT: "torch.fft",
}
_PREFIXES = {_LINALG: "linalg_", _FFT: "fft_"}
_BEHIND = {
    _PLACES[_FUNCTIONAL]: (_PLACES[_NN], ""),
    _PLACES[_TORCH]: ("torch.functional", ""),
    _PLACES[_LINALG]: ("torch._C._linalg", _PREFIXES[_LINALG]),
    _PLACES[_FFT]: ("torch._C._fft", _PREFIXES[_FFT]),
}
# Ops of two tensors that torch itself promotes, in the loop of the op, to the bits of a cast: no cast is made, and none
# is saved for backward. Not x.__rtruediv__(y), which is x.reciprocal() * y.
_PROMOTED = ("add", "sub", "rsub", "mul", "div", "true_divide", "eq", "ne", "lt", "le", "gt", "ge")
_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "eq", "ne", "lt", "le", "gt", "ge")
TORCH_PROMOTES = frozenset((*_PROMOTED, *(f"__{name}__" for name in _OPERATORS)))
_ABSENT = object()


class Site:
    """An attribute of a module or class, and its original value. A class has an entry of another kind (a classmethod):
    `raw` before, `entry` now."""

    def __init__(self, owner: Any, name: str, patched: Any, entry: Any = None, raw: Any = None) -> None:
        self.owner, self.name, self.patched = owner, name, patched
        self.entry = patched if entry is None else entry
        self.raw = patched.__wrapped__ if raw is None else raw
        self.own = vars(owner).get(name, _ABSENT)  # a class may inherit it
        self.registration: registry.Registration | None = None
        self.listed: Site | None = None  # the function by the lists, under a registration
        self.beside: Site | None = None

    def put(self) -> None:
        setattr(self.owner, self.name, self.entry)
        if self.beside is not None:
            self.beside.put()

    def bound(self) -> tuple[Any, Any] | None:
        """Returns (before, now) of the method bound to its class, which is a new object each time, or None."""
        if not isinstance(self.entry, classmethod):
            return None
        original = self.patched.__wrapped__
        in_c = isinstance(original, types.ClassMethodDescriptorType)
        before = original.__get__(None, self.owner) if in_c else types.MethodType(original, self.owner)
        return before, types.MethodType(self.patched, self.owner)

    def put_back(self) -> None:
        if self.beside is not None:
            self.beside.put_back()
        if vars(self.owner).get(self.name) is not self.entry:
            return  # wrapped again: that wrapper stays, over a function that passes calls through
        if self.own is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)


_lock = threading.RLock()
_busy = False  # the thread with the lock is making a change
_ended: list[Any] = []  # ended contexts, to be handled after that change
_contexts: list[Any] = []
_models: weakref.WeakSet[Any] = weakref.WeakSet()
_sites: dict[tuple[str, str], Site] = {}
_present: frozenset[str] = frozenset()  # modules imported before anything was patched
_served: list[tuple[Any, tuple[torch.dtype, ...], bool]] = []  # (owner, types, heeds autocast): install_products
_graphs = Graphs()
_known: dict[tuple[str, str, int], Any] = {}  # patched functions are never freed, one for each place and class


def _owner(place: str) -> Any:
    module, _, attribute = place.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, attribute) if attribute else owner


def _original(owner: Any, name: str) -> Any:
    """Returns the unbound function of this name in `owner`, None if torch has none there."""
    if isinstance(owner, type):
        for cls in owner.__mro__[:-1]:  # all but `object`
            if name in vars(cls):
                return vars(cls)[name]
        return None
    return getattr(owner, name, None)


def patched(original: Any, place: str, name: str, op: str, op_class: int = _BY_LIST, flags: int = 0) -> Any:
    """Returns the replacement of `original`, which is found under `place` and `name`."""
    known = _known.get((place, name, op_class))
    if known is not None and known.__wrapped__ is original:
        return known
    path = f"{place}.{name}" if ":" in place else f"{place}:{name}"
    if op_class == _BY_LIST and isinstance(original, types.FunctionType):
        flags |= _core.WHOLE
    fused = in_fp32(place, name, original) if op_class == _BY_LIST else None
    product = products.replacement(op, original) if op_class in (_BY_LIST, _LEAVE) else None
    made = _core.patched(original, path, op, op_class, flags, hasattr(type(original), "__get__"), fused, product)
    _known[place, name, op_class] = made
    return made


def _names(owner_bit: int, name: str) -> Iterator[tuple[str, int]]:
    """Yields a listed name and its in-place variant, as this place spells them."""
    in_place = name.startswith("__i") and name.endswith("__")
    name = name.removeprefix(_PREFIXES.get(owner_bit, ""))
    own = _core.NEVER_NARROWS if name in ("norm", "vector_norm", "matrix_norm") else 0
    own = _core.TORCH_PROMOTES if name in TORCH_PROMOTES else own
    yield name, _core.WIDENS if name == "cpu" else _core.IN_PLACE if in_place else own
    if owner_bit in (_TENSOR, _TORCH) and not name.endswith("__"):
        yield name + "_", _core.IN_PLACE


def _homes(place: str, name: str, original: Any) -> Iterator[tuple[str, str]]:
    """Yields the places in which to replace a function. Generated code (torch.compile, torch.fx) calls torch's
    functions by their own address, torch._C._nn.linear or torch.functional.einsum, under any name."""
    if original is not None and callable(original):
        yield place, name
        behind, prefix = _BEHIND.get(place, (None, ""))
        if behind is not None and vars(_owner(behind)).get(prefix + name) is original:
            yield behind, prefix + name


def _listed(lists: str, only: Collection[str] | None = None) -> Iterator[Site]:
    for op, modules, _fp16, _bf16 in _core.list_ops(LISTS[lists]):
        for bit, place in _PLACES.items():
            if not modules & bit or (only is not None and op not in only):
                continue
            owner = _owner(place)
            for name, flags in _names(bit, op):
                original = _original(owner, name)
                spelt = name if flags == _core.IN_PLACE else op
                for where, home in _homes(place, name, original):
                    if (where, home) not in _sites:
                        made = patched(original, place, name, spelt, _BY_LIST, flags)
                        yield _sites.setdefault((where, home), Site(_owner(where), home, made))


def _products(listed: bool) -> Iterator[Site]:
    """Yields the products for which no list has a class, and with `listed` those of the lists too."""
    if listed:
        yield from _listed("apex", products.OPS)
    for module, name in products.UNLISTED:
        owner = importlib.import_module(module)
        original = _original(owner, name)
        for where, home in _homes(module, name, original):
            if (where, home) not in _sites:
                made = patched(original, module, name, name, _LEAVE)
                yield _sites.setdefault((where, home), Site(_owner(where), home, made))


def _aliases() -> Iterator[Site]:
    """Yields aliases: F.prelu is torch.prelu. A name listed for torch has a second place there, unless the list has
    another entry for it."""
    home = _PLACES[_FUNCTIONAL]
    for (place, name), site in list(_sites.items()):
        original = site.patched.__wrapped__
        if place == _PLACES[_TORCH] and (home, name) not in _sites and vars(_owner(home)).get(name) is original:
            yield _sites.setdefault((home, name), Site(_owner(home), name, site.patched))


def _taken_back(moved: list[tuple[Any, Any]]) -> Iterator[Site]:
    """Restores the list's class after a removed registration. `moved`: (old, new) for the sweep."""
    for key, site in list(_sites.items()):
        if site.registration is None or not site.registration.removed:
            continue
        site.put_back()
        del _sites[key]
        moved.append((site.patched, site.listed.patched if site.listed else site.patched.__wrapped__))
        if site.listed is not None:
            yield _sites.setdefault(key, site.listed)


def _registered(wanted: Iterable[registry.Registration], moved: list[tuple[Any, Any]]) -> Iterator[Site]:
    """Applies the user's registrations, which override the lists."""
    for registration in wanted:
        module, name, op_class = registration.module, registration.name, registration.op_class
        place = _place_of(module)
        before = _sites.get((place, name))
        if before is not None and before.owner is not module:  # another class of this name
            place = f"{place}#{id(module)}"
            before = _sites.get((place, name))
        if before is not None and before.registration is not None and before.registration.op_class == op_class:
            continue
        raw = before.raw if before is not None else _original(module, name)
        make = functools.partial(patched, place=place, name=name, op=name, op_class=op_class)
        site = Site(module, name, *registry.stand_in(raw, make), raw)
        site.registration = registration
        if before is not None:
            site.own, site.listed = before.own, before.listed if before.registration else before
            moved.append((before.patched, site.patched))
        if name == "apply" and isinstance(module, type) and issubclass(module, torch.autograd.Function):
            site.beside = _break_graphs(module)
        _sites[place, name] = site
        yield site


def _break_graphs(function: type[torch.autograd.Function]) -> Site:
    """Makes torch.compile call a Function's apply, which casts, between two graphs. It would trace the forward
    directly."""
    own = function.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    return Site(function, "forward", apart(forward), staticmethod(forward))


def _place_of(module: Any) -> str:
    for place in _PLACES.values():
        if _owner(place) is module:
            return place
    if isinstance(module, type):
        return f"{module.__module__}:{module.__qualname__}"
    return str(getattr(module, "__name__", type(module).__name__))


def _forward_map() -> dict[int, tuple[Any, Any]]:
    """Returns a map from original to patched function. For a function with several names (F.conv2d is torch.conv2d) the
    first list counts."""
    swap: dict[int, tuple[Any, Any]] = {}
    for site in _sites.values():
        original = site.patched.__wrapped__
        inherited = site.own is _ABSENT and isinstance(site.owner, type)  # other classes have it too
        if not inherited or site.registration is None:
            swap.setdefault(id(original), (original, site.patched))
    return swap


def _backward_map() -> dict[int, tuple[Any, Any]]:
    return {id(site.patched): (site.patched, site.patched.__wrapped__) for site in _sites.values()}


def _bound() -> list[tuple[Any, Any]]:
    return [pair for site in _sites.values() if (pair := site.bound()) is not None]


def _report(op: str, before: int, after: int) -> None:
    print(f"{_TYPES[before]}->{_TYPES[after]} ({op})", file=sys.stdout)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Serializes changes. A context may end in the garbage collector at any time: see uninstall."""
    global _busy
    with _lock:
        outer, _busy = _busy, True
        try:
            yield
        finally:
            _busy = outer
            if not outer:
                _settle()


def _settle() -> None:
    while _ended:
        owner = _ended.pop()
        if owner in _contexts:
            _contexts.remove(owner)
        served = [each for each in _served if each[0] is owner]
        for each in served:
            _served.remove(each)
        if served:
            _serve()
    if _sites and not _contexts:
        _restore()


def _serve() -> None:
    """Says in which types patched functions of products use their replacements."""
    types = tuple({low for _owner, given, _heeds in _served for low in given})
    heeds = any(each[2] for each in _served)
    autocast = (products.in_autocast, products.autocast_type) if heeds else (None, None)
    _core.serve_products(types, *autocast)


def install(
    context: Any,
    verbosity: int = 1,
    lists: str | None = "apex",
    models: Iterable[Any] = (),
    allow_banned: bool = False,
) -> None:
    """Makes torch's functions obey this context, in its scope or outside of any. `models`: their attributes may hold
    torch's functions. verbosity 2 prints every cast."""
    with _alone():
        _begin()
        lists = lists or "apex"
        moved: list[tuple[Any, Any]] = []
        wanted = registry.wanted(lists)
        kinds = _taken_back(moved), _listed(lists), _products(False), _registered(wanted, moved), _aliases()
        _put(kinds, moved, _guards, models)
        _core.add_policy(context, _report if verbosity >= 2 else None, allow_banned)
        _contexts.append(context)
        _graphs.forget(_code_of(models))


def install_products(
    owner: Any, types: tuple[torch.dtype, ...], models: Iterable[Any] = (), heeds_autocast: bool = False
) -> None:
    """Makes torch's products in these types on the CPU use their replacements, with a policy or without, until
    uninstall(owner). heeds_autocast: those that torch.autocast would lower, too."""
    with _alone():
        _begin()
        _put((_products(True), _aliases()), [], [_scripts], models)
        _served.append((owner, types, heeds_autocast))
        _serve()
        if owner not in _contexts:
            _contexts.append(owner)
        _graphs.forget(_code_of(models))


def _begin() -> None:
    global _present
    if not _sites:
        _present = frozenset(sys.modules)
        _graphs.begin()


def _put(
    kinds: Iterable[Iterator[Site]], moved: list[tuple[Any, Any]], guards: Iterable[Any], models: Iterable[Any]
) -> None:
    for sites in kinds:
        for site in list(sites):
            site.put()
    for guard in guards:
        guard.put()
    _models.update(models)
    sweep = Sweep(_forward_map() | {id(old): (old, new) for old, new in moved}, _bound())
    sweep.modules()
    sweep.torch_modules(_models)


def uninstall(owner: Any, collected: bool = False) -> None:
    """Ends both for a context or another owner. The end of the last one restores every function. `collected`: called by
    the garbage collector, perhaps during another change, which then completes the work at its end."""
    if not _core.remove_policy(owner) and not any(each is owner for each in _contexts):
        return
    _ended.append(owner)
    if not _lock.acquire(blocking=not collected):
        return
    try:
        if not _busy:
            _settle()
    finally:
        _lock.release()
    if not collected:
        (_graphs.forget if _contexts else _graphs.end)()


def _code_of(models: Iterable[Any]) -> list[types.CodeType]:
    """Returns the code of the forwards of these models and their modules."""
    modules = {type(module) for model in models for module in model.modules()}
    return [cls.forward.__code__ for cls in modules if hasattr(cls.forward, "__code__")]


def _restore() -> None:
    for site in reversed(_sites.values()):
        site.put_back()
    for guard in _guards:
        guard.put_back()
    sweep = Sweep(_backward_map(), [(now, before) for before, now in _bound()])
    sweep.modules(back=True, present=_present)
    sweep.torch_modules(_models)
    _models.clear()
    _sites.clear()


def classes_of(name: str) -> tuple[list[tuple[str, int, str]], int]:
    """Returns, for the patched functions of this name, (path, class, source) of those with a class by a script, and the
    number of those that obey the list. torch's own modules behind the public ones do not count."""
    with _lock:
        given = {id(site.patched): site.registration for site in _sites.values() if site.registration is not None}
        sites = [(place, site) for (place, named), site in _sites.items() if named == name]
    behind = {place for place, _ in _BEHIND.values()}
    sites = [each for each in sites if each[0] not in behind] or sites
    found = [(place, each) for place, site in sites if (each := given.get(id(site.patched))) is not None]
    paths = [f"{place.partition('#')[0].replace(':', '.')}.{name}" for place, _ in found]
    told = [(path, each.op_class, each.source) for path, (_, each) in zip(paths, found, strict=True)]
    return told, len(sites) - len(found)


def installed() -> bool:
    """Returns True if any context patches."""
    return bool(_contexts)


@contextlib.contextmanager
def originals() -> Iterator[None]:
    """Opens a block in which torch's own functions are restored, in the whole process, for compilers that read them."""
    with _alone():
        present: list[Any] = [guard for guard in _guards if guard.new is not None]
        present += [site for site in _sites.values() if vars(site.owner).get(site.name) is site.entry]
        for site in reversed(present):
            site.put_back()
        try:
            yield
        finally:
            for site in present:
                site.put()


def _script(original: Any) -> Any:
    """Returns torch's own function for scripted code, which runs in the types that it receives."""

    def script(*args: Any, **kwargs: Any) -> Any:
        with originals():
            return original(*args, **kwargs)

    return script


_scripts = torch_checks.Guard(torch.jit, "script", _script)
_guards: list[Any] = [*torch_checks.GUARDS, *autocast_rules.GUARDS, _scripts]


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns torch's own function behind a patched one."""
    if isinstance(function, (_core.PatchedFunction, _core.PatchedMethod)):
        return inspect.unwrap(function)
    return function
