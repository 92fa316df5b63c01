# SPDX-License-Identifier: Apache-2.0
"""master_weights="split": a bfloat16 parameter and a remainder of 16 bits are its FP32 master (amp_optim.h), so that
there is no second copy of the upper half: with FusedAdam 14 1/8 bytes a parameter and its gradient take.

The optimizer keeps the model's own parameters in its groups. libamp's optimizers step the two parts as they are; any
other has FP32 under its parameters for the time of its step, and FP32 copies of their gradients. The numbers are those
of FP32 masters as long as each gradient is one backward's: what several add up is added by torch, in bfloat16.
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
    """It lies as its parameter does, which may have been laid out anew."""
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
    """run(*lists), of each device's tensors apart."""
    for device in dict.fromkeys(tensor.device for tensor in lists[0]):
        here = [i for i, tensor in enumerate(lists[0]) if tensor.device == device]
        run(*([each[i] for i in here] for each in lists))


def joined(param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The FP32 master: a tensor of its own."""
    (wide,) = _wide([param])
    kernels.join([wide], [param], [rest])
    return wide


def store(param: torch.Tensor, rest: torch.Tensor, value: torch.Tensor) -> None:
    """Parameter and remainder take an FP32 value."""
    (wide,) = _wide([param])
    kernels.split([param.detach()], [rest], [wide.copy_(value.detach())])


def load(param: torch.Tensor, rest: torch.Tensor, value: torch.Tensor) -> None:
    """The same, where torch will write the parameter once more, with the same numbers."""
    store(param, rest, value)
    setattr(rest, _LOADED, True)
    owner = _owner_of(param)
    if owner is not None:
        owner.refresh()


class Shown:
    """The FP32 master of a split parameter as somebody has it, in a state_dict. What is written into it is the
    master's; until that is settled it is kept, and afterwards as long as somebody else keeps it."""

    def __init__(self, param: torch.Tensor, rest: torch.Tensor) -> None:
        self.param, self.rest = param, rest
        self.kept: torch.Tensor | None = joined(param, rest)
        self.tensor = weakref.ref(self.kept)
        self._seen = self.kept._version, param._version

    def _fits(self, wide: torch.Tensor) -> bool:
        """Has the parameter still this shape, and memory?"""
        return wide.shape == self.param.shape and self.param.untyped_storage().nbytes() > 0

    def settle(self) -> bool:
        """Writes are in parameter and remainder. False: nobody has the tensor any more, or it fits no longer."""
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
        """It shows the present master."""
        wide = self.tensor()
        if wide is not None and self._fits(wide):
            wide.copy_(joined(self.param, self.rest))
            self._seen = wide._version, self.param._version


def _owner_of(param: torch.Tensor) -> Split | None:
    splits: list[Split] = [session.split for session in live() if session.split is not None]
    return next((each for each in splits if each.params.get(id(param)) is param), None)


def shown(param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The master as a tensor that can be written to."""
    owner = _owner_of(param)
    return joined(param, rest) if owner is None else owner.show(param, rest)


def _new_remainder(param: torch.Tensor) -> torch.Tensor:
    return torch.zeros(kernels.remainder_bytes(param.numel()) // 4, dtype=torch.float32, device=param.device)


class Split:
    """A session's split masters."""

    def __init__(self) -> None:
        self.params: dict[int, torch.Tensor] = {}
        self._exact: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._versions: dict[int, int] = {}  # of those that no backward has seen yet
        self._shown: dict[int, Shown] = {}

    def before(self, params: Iterable[torch.Tensor]) -> None:
        """Those that get masters: the values of the ones that will be re-typed are kept until then."""
        for param in params:
            need_kernels("master_weights='split'", param.device, "use master_weights=True")
            if param.dtype in (torch.float32, torch.bfloat16) and id(param) not in self.params:
                self._exact[id(param)] = (param, param.detach().clone())

    def after(self) -> None:
        """Those that are bfloat16 have remainders."""
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
        """Who wrote parameters until here meant their masters (DistributedDataParallel's broadcast, on every rank)."""
        for key, version in self._versions.items():
            rest = remainder_of(self.params[key])
            written = self.params[key]._version != version and not getattr(rest, _LOADED, False)
            if rest is not None and written:
                rest.zero_()
        self._versions.clear()

    def show(self, param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        """split.shown."""
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
        """Parameters take what was written to tensors of a state_dict."""
        if self._shown:
            self._shown = {key: each for key, each in self._shown.items() if each.settle()}

    def refresh(self) -> None:
        """These tensors show what parameters have."""
        for each in self._shown.values():
            each.refresh()

    def stepped(self) -> None:
        """What was written until here was written by an optimizer."""
        self.refresh()
        for key in self._versions:
            self._versions[key] = self.params[key]._version

    @property
    def bytes(self) -> int:
        """What remainders take."""
        rests = map(remainder_of, self.params.values())
        return sum(rest.nbytes for rest in rests if rest is not None)

    def end(self) -> None:
        """The library has widened the parameters: they are their masters again."""
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
    """Is it one of libamp's own, which step parameters and remainders as they are?"""
    names = ("FusedSGD", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad")
    ours = importlib.import_module("libamp.torch.optimizers")
    if type(optimizer) not in [getattr(ours, name) for name in names]:
        return False
    largest = any(group.get("norm_type") == 0 for group in optimizer.param_groups)  # FusedNovoGrad's own arithmetic
    return not (getattr(optimizer, "capturable", False) or getattr(optimizer, "master_weights", False) or largest)


class Lent:
    """`with Lent(session.split, optimizer):` FP32 masters stand in the groups, and own the state, in the place of their
    parameters. Other tensors, for a parameter of another type would be another leaf to autograd and to who hooks it."""

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
    """Zeros are none: a parameter that no backward reaches is not stepped, as one whose master has no gradient."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if remainder_of(param) is not None:
                param.grad = None


def lent(session: Any, optimizer: Any) -> Any:
    """What a step of this optimizer needs around it."""
    split = session.split
    return _Nothing() if split is None or steps_parts(optimizer) else Lent(split, optimizer)


def make_load(old: Callable[..., Any], owner: Callable[..., Any]) -> Callable[..., Any]:
    """load_state_dict: torch gives state its parameter's type, which is FP32 while it loads."""

    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lent(self._amp_stash.session, self):
            return old(*args, **kwargs)

    return load_state_dict
