# SPDX-License-Identifier: Apache-2.0
"""The FP32 state_dict of a model whose type amp has changed. The model shows its masters. A copy of it shows FP32
values kept beside its 16-bit ones, so that averages of weights can be written to it."""
from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from . import split_masters
from .session import Session, live

_LOW = (torch.float16, torch.bfloat16)


def _keeper_of(tensor: torch.Tensor) -> Session | None:
    """Returns the session with the master of this parameter."""
    return next((session for session in live() if id(tensor) in session.masters), None)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, param in module._parameters.items():
        if param is not None:
            yield name, param
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield name, buffer


_filling: weakref.ref[Any] | None = None  # the state_dict for which masters were last settled


def _settle_for(destination: Any) -> None:
    """Settles once for all modules of a model."""
    global _filling
    if _filling is None or _filling() is not destination:
        for each in live():
            each.settle()
        _filling = weakref.ref(destination) if isinstance(destination, OrderedDict) else None


def _widen(
    module: nn.Module, destination: Any, prefix: str, wide_of: Callable[[str, torch.Tensor], torch.Tensor]
) -> Any:
    global _filling
    for name, tensor in _own_tensors(module):
        value = destination.get(prefix + name)
        if isinstance(value, torch.Tensor) and value.dtype in _LOW:
            wide = exact(tensor, destination)
            wide = wide_of(name, tensor) if wide is None else wide
            destination[prefix + name] = wide.detach() if wide.requires_grad else wide
    if not prefix:
        _filling = None
    return destination


def has_master(tensor: torch.Tensor) -> bool:
    """Returns True if this 16-bit parameter has a master."""
    return _keeper_of(tensor) is not None or split_masters.remainder_of(tensor) is not None


def exact(tensor: torch.Tensor, reader: Any = None) -> torch.Tensor | None:
    """Returns the updated master of a 16-bit parameter, or None. reader: one object for all parameters that are read
    together."""
    keeper = _keeper_of(tensor)
    if keeper is not None:
        _settle_for(reader)
        return keeper.masters[id(tensor)]
    rest = split_masters.remainder_of(tensor)
    return None if rest is None else split_masters.shown(tensor, rest)


class SaveHook:
    """A state_dict hook: returns the module's 16-bit entries in FP32, with the masters' values where there are some."""

    def __call__(self, module: nn.Module, destination: Any, prefix: str, local_metadata: Any) -> Any:
        return _widen(module, destination, prefix, lambda _, tensor: tensor.float())

    def __reduce__(self) -> tuple[Any, ...]:
        return _save_copy, ()


def load_masters(module: nn.Module, state_dict: Any, prefix: str, *rest: Any) -> None:
    """Loads masters before a module loads: they get the values of the file, and 16-bit parameters are rounded after."""
    for name, param in module._parameters.items():
        value = state_dict.get(prefix + name)
        remainder = split_masters.remainder_of(param) if param is not None else None
        if remainder is not None and isinstance(value, torch.Tensor) and value.shape == param.shape:
            split_masters.load(param, remainder, value)
        keeper = _keeper_of(param) if param is not None else None
        if keeper is not None and isinstance(value, torch.Tensor) and value.shape == param.shape:
            with torch.no_grad():
                keeper.masters[id(param)].copy_(value)
            keeper.agree(param, loads=True)


class LoadHook:
    """Calls load_masters for one module. Some versions of torch call such hooks without the module, so it keeps a weak
    reference."""

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
    """Replaces a LoadHook in a copied model."""


def hook(model: nn.Module) -> Callable[[], None]:
    """Makes state_dict of the model and its modules FP32, and load_state_dict reach the masters."""
    handles: list[Any] = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # these accept no hooks
        if any(isinstance(each, SaveHook) for each in module._state_dict_hooks.values()):
            continue
        handles.append(module._register_state_dict_hook(SaveHook()))
        handles.append(module._register_load_state_dict_pre_hook(LoadHook(module)))

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


# ---- copies ----


class Wide:
    """FP32 values beside a 16-bit tensor of a copy. A write to either counts for both."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.values = tensor, tensor.detach().float()
        self._agreed = tensor.detach().clone()
        self._seen = (tensor._version, self.values._version)

    def fits(self, tensor: torch.Tensor) -> bool:
        mine = self._agreed
        return self.tensor is tensor and (mine.shape, mine.dtype, mine.device) == (
            tensor.shape,
            tensor.dtype,
            tensor.device,
        )

    def moved(self) -> bool:
        """Returns True if a version reports a write. Writes through `.data` change none."""
        return self._seen != (self.tensor._version, self.values._version)

    @torch.no_grad()
    def settle(self) -> None:
        """Makes both agree: written elements of the 16-bit tensor count, however written, elsewhere the FP32 values."""
        tensor, values, agreed = self.tensor, self.values, self._agreed
        written = tensor.detach().view(torch.int16) != agreed.view(torch.int16)
        follow = values._version != self._seen[1]
        values.copy_(torch.where(written, tensor.float(), values))
        if follow:
            tensor.copy_(values)
        agreed.copy_(tensor)
        self._seen = (tensor._version, values._version)


class Wides(dict[str, Wide]):
    """The FP32 values of a module by name. A copy of the copy begins without."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Wides:
        return Wides()

    def __reduce__(self) -> tuple[Any, ...]:
        return Wides, ()


def _settle(module: nn.Module, args: Any = None) -> None:
    """Settles before a forward."""
    for wide in module.__dict__.get("_amp_wides", {}).values():
        if wide.moved():
            wide.settle()


def settle_copy(model: nn.Module) -> None:
    """Copies writes to the model's state_dict to its tensors, before the model is copied or saved."""
    for module in model.modules():
        _settle(module)


def _save_copy() -> Callable[..., Any]:
    return widen_copy


def widen_copy(module: nn.Module, destination: Any, prefix: str, local_metadata: Any) -> Any:
    """Replaces a SaveHook in a copied model: the entries are writable, as in a plain model."""

    def wide_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
        wides = module.__dict__.setdefault("_amp_wides", Wides())
        if name not in wides or not wides[name].fits(tensor):
            wides[name] = Wide(tensor)
        wides[name].settle()
        if not any(each is _settle for each in module._forward_pre_hooks.values()):
            module.register_forward_pre_hook(_settle)
        return wides[name].values

    return _widen(module, destination, prefix, wide_of)
