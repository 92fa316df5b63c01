# SPDX-License-Identifier: Apache-2.0
"""master_weights="split": a bfloat16 parameter and a remainder of 16 bits form its FP32 master (amp_optim.h), without a
second copy of the upper half. With FusedAdam a parameter and its gradient take 14 1/8 bytes.

The optimizer has the model's own parameters in its groups. libamp's optimizers step both parts directly. For any other,
the parameters become FP32 for the time of its step, with FP32 copies of their gradients. The numbers equal those of
FP32 masters if each gradient comes from one backward: torch adds several in bfloat16.
"""
from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import kernels
from .._devices import need_kernels
from . import outer_optimizers
from .session import live

_NAME, _LOADED, _LAYOUT = "_amp_remainder", "_amp_loaded", "_amp_layout"
Lists = tuple[list[torch.Tensor], list[torch.Tensor]]


def remainder_of(param: torch.Tensor) -> torch.Tensor | None:
    """Returns the remainder in the layout of its parameter, which may have changed."""
    found: torch.Tensor | None = getattr(param, _NAME, None)
    if found is not None and getattr(found, _LAYOUT, param.stride()) != param.stride():
        _lay_anew(found, param)
    return found


@torch.no_grad()
def _lay_anew(rest: torch.Tensor, param: torch.Tensor) -> None:
    layout = getattr(rest, _LAYOUT)
    if len(layout) == param.dim() and kernels.remainder_bytes(param.numel()) <= rest.nbytes:
        before = torch.empty_strided(param.shape, layout, dtype=torch.bfloat16, device=param.device).copy_(param)
        here = torch.empty_like(param, dtype=torch.bfloat16)
        wide = torch.empty_like(here, dtype=torch.float32).copy_(joined(before, rest))
        kernels.split([here], [rest], [wide])
        setattr(rest, _LAYOUT, param.stride())


def _wide(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(param, dtype=torch.float32, requires_grad=False) for param in params]


def _by_device(run: Callable[..., Any], *lists: list[torch.Tensor]) -> None:
    """Calls run(*lists) for the tensors of each device."""
    for device in dict.fromkeys(tensor.device for tensor in lists[0]):
        here = [i for i, tensor in enumerate(lists[0]) if tensor.device == device]
        run(*([each[i] for i in here] for each in lists))


def joined(param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Returns the FP32 master as a new tensor."""
    (wide,) = _wide([param])
    kernels.join([wide], [param], [rest])
    return wide


def store(param: torch.Tensor, rest: torch.Tensor, value: torch.Tensor) -> None:
    """Stores an FP32 value in parameter and remainder."""
    (wide,) = _wide([param])
    kernels.split([param.detach()], [rest], [wide.copy_(value.detach())])


def load(param: torch.Tensor, rest: torch.Tensor, value: torch.Tensor) -> None:
    """Stores an FP32 value, when torch will write the same numbers to the parameter again."""
    store(param, rest, value)
    setattr(rest, _LOADED, True)
    owner = _owner_of(param)
    if owner is not None:
        owner.refresh()


class Shown:
    """The FP32 master of a split parameter, as a state_dict shows it. Writes to it go to the master. It is kept until
    they are settled, and then as long as someone else refers to it."""

    def __init__(self, param: torch.Tensor, rest: torch.Tensor) -> None:
        self.param, self.rest = param, rest
        self.kept: torch.Tensor | None = joined(param, rest)
        self.tensor = weakref.ref(self.kept)
        self._seen = self.kept._version, param._version

    def _fits(self, wide: torch.Tensor) -> bool:
        """Returns True if the parameter still has this shape, and memory."""
        return wide.shape == self.param.shape and self.param.untyped_storage().nbytes() > 0

    def settle(self) -> bool:
        """Copies writes to parameter and remainder. Returns False if the tensor is unreferenced or no longer fits."""
        wide, kept = self.tensor(), self.kept
        if wide is None or not self._fits(wide):
            return False
        written = wide._version != self._seen[0]
        if not written and kept is not None and self.param._version == self._seen[1]:
            written = not torch.equal(wide, joined(self.param, self.rest))  # through `.data`
        if written:
            store(self.param, self.rest, wide)
        self._seen, self.kept = (wide._version, self.param._version), None
        return True

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the present master to the tensor."""
        wide = self.tensor()
        if wide is not None and self._fits(wide):
            wide.copy_(joined(self.param, self.rest))
            self._seen = wide._version, self.param._version


def _owner_of(param: torch.Tensor) -> Split | None:
    splits: list[Split] = [session.split for session in live() if session.split is not None]
    return next((each for each in splits if each.params.get(id(param)) is param), None)


def shown(param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Returns the master as a writable tensor."""
    owner = _owner_of(param)
    return joined(param, rest) if owner is None else owner.show(param, rest)


def _new_remainder(param: torch.Tensor) -> torch.Tensor:
    return torch.zeros(kernels.remainder_bytes(param.numel()) // 4, dtype=torch.float32, device=param.device)


class Split:
    """The split masters of a session."""

    def __init__(self) -> None:
        self.params: dict[int, torch.Tensor] = {}
        self._exact: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._versions: dict[int, int] = {}  # of those that no backward has seen yet
        self._shown: dict[int, Shown] = {}

    def before(self, params: Iterable[torch.Tensor]) -> None:
        """Selects the parameters that get masters, and saves the values of those whose type will change."""
        for param in params:
            need_kernels("master_weights='split'", param.device, "use master_weights=True")
            if param.dtype in (torch.float32, torch.bfloat16) and id(param) not in self.params:
                self._exact[id(param)] = (param, param.detach().clone())

    def after(self) -> None:
        """Makes remainders for bfloat16 parameters."""
        for param, exact in self._exact.values():
            if param.dtype is torch.bfloat16:
                rest = _new_remainder(param)
                setattr(rest, _LAYOUT, param.stride())
                store(param, rest, exact)
                setattr(param, _NAME, rest)
                self.params[id(param)] = param
        for key in self._exact:  # now that all are written, for slices of one tensor have one version
            if key in self.params:
                self._versions[key] = self.params[key]._version
        self._exact.clear()

    def before_first_backward(self) -> None:
        """Accepts writes to parameters so far as writes to masters (DistributedDataParallel's broadcast on every
        rank)."""
        for key, version in self._versions.items():
            rest = remainder_of(self.params[key])
            written = self.params[key]._version != version and not getattr(rest, _LOADED, False)
            if rest is not None and written:
                rest.zero_()
        self._versions.clear()

    def show(self, param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        """Calls split.shown."""
        known = self._shown.get(id(param))
        wide = known.tensor() if known is not None and known.param is param and known.settle() else None
        if known is not None and wide is not None and wide.shape == param.shape:
            known.refresh()
            known.kept = wide
            return wide
        made = self._shown[id(param)] = Shown(param, rest)
        assert made.kept is not None
        return made.kept

    def settle(self) -> None:
        """Copies writes to tensors of a state_dict to the parameters."""
        if self._shown:
            self._shown = {key: each for key, each in self._shown.items() if each.settle()}

    def refresh(self) -> None:
        """Copies the parameters' values to these tensors."""
        for each in self._shown.values():
            each.refresh()

    def stepped(self) -> None:
        """Marks all writes so far as those of an optimizer."""
        self.refresh()
        for key in self._versions:
            self._versions[key] = self.params[key]._version

    @property
    def bytes(self) -> int:
        """Returns the bytes of the remainders."""
        rests = map(remainder_of, self.params.values())
        return sum(rest.nbytes for rest in rests if rest is not None)

    def end(self) -> None:
        """Ends the session: the library has widened the parameters, which become their masters again."""
        self._shown.clear()
        for param in self.params.values():
            rest = remainder_of(param)
            if rest is not None and param.dtype is torch.float32:
                with torch.no_grad():
                    param.copy_(joined(param.detach().bfloat16(), rest))
            if rest is not None:
                delattr(param, _NAME)


# ---- an optimizer's step ----


def steps_parts(optimizer: Any) -> bool:
    """Returns True for libamp's own optimizers, which step parameters and remainders directly."""
    names = ("FusedSGD", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad")
    ours = importlib.import_module("libamp.torch.optimizers")
    if type(optimizer) not in [getattr(ours, name) for name in names]:
        return False
    largest = any(group.get("norm_type") == 0 for group in optimizer.param_groups)  # FusedNovoGrad's own arithmetic
    return not (getattr(optimizer, "capturable", False) or getattr(optimizer, "master_weights", False) or largest)


class Lent:
    """Puts FP32 masters into the groups and the state in place of their parameters: `with Lent(session.split,
    optimizer):`. They are other tensors, because a parameter of another type would be another leaf to autograd and its
    hooks."""

    def __init__(self, split: Split, optimizer: Any) -> None:
        self._split = split
        self._optimizers = [optimizer, *outer_optimizers.inside(optimizer, [])]
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _exchange(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        new = {id(old): other for old, other in pairs}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"][:] = [new.get(id(param), param) for param in group["params"]]
            outer_optimizers.re_key(optimizer, pairs)

    @torch.no_grad()
    def __enter__(self) -> None:
        listed = [param for each in self._optimizers for group in each.param_groups for param in group["params"]]
        params = [param for param in {id(param): param for param in listed}.values() if remainder_of(param) is not None]
        wide = _wide(params)
        _by_device(kernels.join, wide, params, [getattr(param, _NAME) for param in params])
        self._pairs = []
        for param, fp32 in zip(params, wide, strict=True):
            master = torch.nn.Parameter(fp32, requires_grad=param.requires_grad)
            master.grad = None if param.grad is None else param.grad.float()
            self._pairs.append((param, master))
        self._exchange(self._pairs)

    @torch.no_grad()
    def __exit__(self, *error: object) -> None:
        pairs, self._pairs = self._pairs, []
        self._exchange([(master, param) for param, master in pairs])
        wide = []
        for param, master in pairs:
            alike = master.stride() == param.stride() and master.dtype is torch.float32
            wide.append(master.detach() if alike else torch.empty_like(param, dtype=torch.float32).copy_(master))
            if master.grad is None:
                param.grad = None
        params = [param for param, _ in pairs]
        _by_device(kernels.split, params, [getattr(param, _NAME) for param in params], wide)
        self._split.stepped()


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def forget_gradients(optimizer: Any) -> None:
    """Treats zero gradients as None: a parameter that backward does not reach is not stepped, as one whose master has
    no gradient."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if remainder_of(param) is not None:
                param.grad = None


def lent(session: Any, optimizer: Any) -> Any:
    """Returns the context manager for a step of this optimizer."""
    split = session.split
    return _Nothing() if split is None or steps_parts(optimizer) else Lent(split, optimizer)


def make_load(old: Callable[..., Any], owner: Callable[..., Any]) -> Callable[..., Any]:
    """Returns load_state_dict. torch casts state to the type of the parameter, which is FP32 during the load."""

    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lent(self._amp_stash.session, self):
            return old(*args, **kwargs)

    return load_state_dict
