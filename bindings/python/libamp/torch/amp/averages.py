# SPDX-License-Identifier: Apache-2.0
"""Averages of weights, for models with FP32 masters. 16 bits cannot represent an average that moves by a thousandth of
a weight's change. torch's AveragedModel and the EMA classes of timm, diffusers and ema_pytorch average the masters in
FP32 instead. A 16-bit average of the script itself is reported."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .._living import has_grad_fn, living
from . import cuda_graphs, model_states, retype
from . import session as sessions
from .compiling import outside
from .session import Session, live

_LOW = (torch.float16, torch.bfloat16)


# ---- FP32 in the place of 16 bits ----


def _is_low(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dtype in _LOW


def _has_masters(tensors: Iterable[Any]) -> bool:
    return any(_is_low(tensor) and model_states.has_master(tensor) for tensor in tensors)


def _exact(tensor: Any, reader: Any) -> Any:
    """Returns the master of a parameter, or another 16-bit tensor in FP32."""
    if not _is_low(tensor):
        return tensor
    wide = model_states.exact(tensor, reader)
    wide = tensor.detach().float() if wide is None else wide
    same = wide.requires_grad == tensor.requires_grad  # diffusers averages trained parameters only
    return wide if same else wide.detach().requires_grad_(tensor.requires_grad)


class Exact:
    """A view of a model with masters instead of its parameters."""

    def __init__(self, model: Any) -> None:
        self._model, self._reader = model, object()

    def _each(self, name: str, args: Any, kwargs: Any) -> Iterator[Any]:
        for found in getattr(self._model, name)(*args, **kwargs):
            if isinstance(found, tuple):
                yield found[0], _exact(found[1], self._reader)
            else:
                yield _exact(found, self._reader)

    def __getattr__(self, name: str) -> Any:
        if name in ("parameters", "named_parameters", "buffers", "named_buffers"):
            return lambda *args, **kwargs: self._each(name, args, kwargs)
        return getattr(self._model, name)


def _exact_params(parameters: Iterable[Any], writes: bool = False) -> list[Any]:
    """Returns the masters of parameters. writes: parameters without a master are returned themselves."""
    reader, listed = object(), list(parameters)
    if not _has_masters(listed):
        return listed
    return [param if writes and not model_states.has_master(param) else _exact(param, reader) for param in listed]


@torch.no_grad()
def _wrote(tensors: Iterable[torch.Tensor]) -> None:
    """Marks masters as written, perhaps through `.data`, so that parameters follow before the next forward."""
    for tensor in tensors:
        tensor[..., :0].zero_()  # a new version


@torch.no_grad()
def _widen(copy: Any, source: Any, fresh: bool = True) -> None:
    """Makes a copy of a model with masters compute in FP32. fresh: also starts from the masters' values."""
    low = isinstance(copy, nn.Module) and any(map(_is_low, copy.parameters()))
    if not low or not _has_masters(source.parameters()):
        return
    given = dict(Exact(source).named_parameters()) if fresh else {}
    for module in copy.modules():
        spec = module.__dict__.get("_amp_forward")
        if spec is not None:
            module.__dict__["_amp_forward"] = spec.in_fp32()
        module.__dict__.pop("_amp_wides", None)
    for name, tensor in (*copy.named_parameters(), *copy.named_buffers()):
        wide = given.get(name)
        if _is_low(tensor) and wide is not None and wide.shape == tensor.shape:
            tensor.data = wide.detach().to(tensor.device, torch.float32, copy=True)
        elif _is_low(tensor):
            tensor.data = tensor.data.float()
    retype.flatten_rnns([copy])


# ---- the classes ----


def _made(attribute: str) -> Callable[[Any], Any]:
    """Wraps __init__(self, model, ...): the copy that the class makes is FP32."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
            original(self, model, *args, **kwargs)
            if kwargs.get("dtype") is None:
                _widen(getattr(self, attribute, None), model)

        return __init__

    return make


def _reads(original: Any) -> Any:
    """Wraps method(self, model, ...)."""

    @functools.wraps(original)
    def update(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not _has_masters(model.parameters()):
            return original(self, model, *args, **kwargs)
        _widen(getattr(self, "module", None), model, fresh=False)  # made before its class was found
        return original(self, Exact(model), *args, **kwargs)

    return update


def _lists(writes: bool) -> Callable[[Any], Any]:
    """Wraps method(self, parameters) of diffusers."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
            listed = list(parameters.parameters() if isinstance(parameters, nn.Module) else parameters)
            if not _has_masters(listed):
                return original(self, parameters if isinstance(parameters, nn.Module) else listed, *args, **kwargs)
            self.shadow_params = [each.float() if _is_low(each) else each for each in self.shadow_params]
            exact = _exact_params(listed, writes)
            result = original(self, exact, *args, **kwargs)
            if writes:
                _wrote(exact)
            return result

        return method

    return make


def _shadows(original: Any) -> Any:
    """Wraps __init__(self, parameters, ...) of diffusers."""

    @functools.wraps(original)
    def __init__(self: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:
        listed = list(parameters.parameters() if isinstance(parameters, nn.Module) else parameters)
        original(self, parameters if isinstance(parameters, nn.Module) else listed, *args, **kwargs)
        self.shadow_params = [
            shadow if exact is param else exact.detach().to(shadow.device, copy=True)
            for shadow, param, exact in zip(self.shadow_params, listed, _exact_params(listed), strict=True)
        ]

    return __init__


def _iterates(original: Any) -> Any:
    """Wraps get_params_iter and get_buffers_iter of ema_pytorch."""

    @functools.wraps(original)
    def each(self: Any, model: Any) -> Iterator[tuple[str, Any]]:
        if not _has_masters(self.model.parameters()):
            yield from original(self, model)
            return
        if model is self.ema_model:
            _widen(model, self.model, fresh=not bool(self.initted))
        reader = object()
        for name, tensor in original(self, model):
            yield name, _exact(tensor, reader)

    return each


def _copies_back(original: Any) -> Any:
    """Wraps copy_params_from_ema_to_model(self)."""

    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        _wrote(_exact_params(self.model.parameters(), writes=True))
        averages = dict(self.ema_model.named_buffers())
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                if _is_low(buffer) and name in averages:
                    buffer.copy_(averages[name])
        return result

    return copy


def _moves(original: Any) -> Any:
    """Wraps update_moving_average(self, averaged, model, ...). It may move the model itself."""

    @functools.wraps(original)
    def move(self: Any, averaged: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, averaged, *args, **kwargs)
        if averaged is not self.ema_model:
            _wrote(_exact_params(averaged.parameters(), writes=True))
        return result

    return move


_EMA_PYTORCH: dict[str, Callable[[Any], Any]] = {
    "get_params_iter": _iterates,
    "get_buffers_iter": _iterates,
    "copy_params_from_ema_to_model": _copies_back,
    "update_moving_average": _moves,
}
# module: class: method: wrapper
_CLASSES: dict[str, dict[str, dict[str, Callable[[Any], Any]]]] = {
    "torch.optim.swa_utils": {"AveragedModel": {"__init__": _made("module"), "update_parameters": _reads}},
    "timm.utils.model_ema": {
        "ModelEma": {"__init__": _made("ema")},
        "ModelEmaV2": {"__init__": _made("module")},
        "ModelEmaV3": {"__init__": _made("module"), "apply_update_": _reads, "apply_update_no_buffers_": _reads},
    },
    "diffusers.training_utils": {
        "EMAModel": {
            "__init__": _shadows,
            "step": _lists(writes=False),
            "store": _lists(writes=False),
            "copy_to": _lists(writes=True),
            "restore": _lists(writes=True),
        }
    },
    "ema_pytorch.ema_pytorch": {"EMA": _EMA_PYTORCH},
    "ema_pytorch.post_hoc_ema": {"KarrasEMA": _EMA_PYTORCH},
}
_put: dict[str, list[tuple[type, str, Any, Any]]] = {}


def serve() -> None:
    """Makes the averaging classes imported so far use masters, while any session has some."""
    for module in _CLASSES:
        if module in sys.modules and module not in _put:
            _put[module] = list(_replace(sys.modules[module], _CLASSES[module]))


def _replace(module: Any, classes: Any) -> Iterator[tuple[type, str, Any, Any]]:
    for name, methods in classes.items():
        owner = getattr(module, name, None)
        for method, make in methods.items():
            own = vars(owner).get(method) if isinstance(owner, type) else None
            if own is not None and owner is not None:
                new = make(own)
                setattr(owner, method, new)
                yield owner, method, own, new


def _put_back() -> None:
    if any(session.masters or session.split for session in live()):
        return
    for replaced in _put.values():
        for owner, method, own, new in replaced:
            if vars(owner).get(method) is new:
                setattr(owner, method, own)
    _put.clear()


# ---- shadows by hand ----


class Shadows:
    """Searches for a session's first 16-bit averages: tensors near a parameter that move with it."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._steps, self._next = 0, 1
        self._seen: dict[int, tuple[torch.Tensor, list[tuple[weakref.ref[torch.Tensor], int]]]] = {}

    @outside
    def stepped(self) -> None:
        """Searches after steps 1, 2, 4, ... and, after a match, after the next step. A search waits for a GPU, so there
        only after the first two steps. Observation makes copies of its own, which are ignored."""
        self._steps += 1
        serve()
        if not self._seen and self._steps < self._next:
            return
        session = self._session()
        if session is None or session.observer is not None or cuda_graphs.is_capturing() or self._next > 1024:
            return
        if self._steps > 2 and any(map(sessions.is_elsewhere, _params_of(session).values())):
            self._next, self._seen = 1 << 62, {}
            return
        before, self._seen = self._seen, {}
        found = self._find(session)
        for key, tensors in found.items():
            for tensor in tensors:
                if key in before and _moved(tensor, *before[key]):
                    self._next = 1 << 62
                    session.record.report("AMP-M48", session.name_of(_params_of(session)[key]))
                    return
        if self._steps >= self._next:
            self._next = 2 * self._steps
            copies = {key: _params_of(session)[key].detach().clone() for key in found}
            self._seen = {
                key: (copies[key], [(weakref.ref(each), each._version) for each in tensors])
                for key, tensors in found.items()
            }

    @torch.no_grad()
    def _find(self, session: Session) -> dict[int, list[torch.Tensor]]:
        """Returns, by parameter, the 16-bit tensors near one of the first matrices that libamp does not own."""
        params = [(key, param) for key, param in _params_of(session).items() if param.dim() > 1 and _is_low(param)][:4]
        shapes: dict[Any, list[tuple[int, torch.Tensor]]] = {}
        for key, param in params:
            shapes.setdefault((param.shape, param.dtype, param.device), []).append((key, param))
        listed = living(frozenset((torch.Tensor, nn.Parameter, model_states.Wide)))
        own = {0}  # memory that fully_shard has freed
        own |= {param.data_ptr() for each in live() for param in _params_of(each).values()}
        for wide in (each for each in listed if type(each) is model_states.Wide):
            own |= {wide.tensor.data_ptr(), wide._agreed.data_ptr()}
        found: dict[int, list[torch.Tensor]] = {}
        for each in listed:
            if type(each) is model_states.Wide or each.dtype not in _LOW or has_grad_fn(each):
                continue  # with a grad_fn it is a cast of a forward, of another thread's session
            if _has_numbers(each):
                for key, param in shapes.get((each.shape, each.dtype, each.device), ()):
                    if each.data_ptr() not in own and _is_near(each, param):
                        found.setdefault(key, []).append(each)
        return found


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Returns False for tensors of compilers with symbolic sizes."""
    return all(type(extent) is int for extent in tensor.shape)


def _params_of(session: Session) -> dict[int, torch.Tensor]:
    """Returns the parameters with a master, by id."""
    return session._params if session.split is None else session.split.params


def _moved(tensor: torch.Tensor, copy: torch.Tensor, before: list[tuple[weakref.ref[torch.Tensor], int]]) -> bool:
    """Returns True if the tensor was written, or replaces one that is gone, and differs from the weights of then."""
    known = [(ref(), version) for ref, version in before]
    if torch.equal(tensor, copy):
        return False
    versions = [version for old, version in known if old is tensor]
    return tensor._version not in versions if versions else any(old is None for old, _ in known)


def _is_near(tensor: torch.Tensor, param: torch.Tensor) -> bool:
    """Returns True if the tensor is near the parameter and no copy of it. Nothing is near one that is not finite."""
    there, here = tensor.detach().float(), param.detach().float()
    distance = float((there - here).norm())
    return 0.0 < distance <= 0.25 * float(here.norm()) < math.inf


def watch(session: Session) -> None:
    """Begins the search at the end of initialize."""
    if session.masters or session.split is not None:
        session.shadows = Shadows(session)
        serve()
        session.undo.append(_put_back)
