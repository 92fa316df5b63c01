# SPDX-License-Identifier: Apache-2.0
"""Samples of parameters and gradients. Their sums stay on the device of the parameters until the end of the run, so
nothing waits for a GPU, and a look is a few vector operations for each type of parameters, whatever their number."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .._dtensors import local_part
from .watch import SAMPLE

TOTAL = 1 << 17  # largest number of sampled elements of an optimizer, unless that leaves a parameter below LEAST
LEAST = 64
WIDTH = 8  # neighbours in a sample: they share a cache line
LOW = (torch.float16, torch.bfloat16)
TINY = 2.0**-20  # scaled gradients below it have at most four bits in fp16
_PLAIN = torch._C._disabled_torch_dispatch_impl if hasattr(torch._C, "_disabled_torch_dispatch_impl") else None


def is_readable(tensor: Any) -> bool:
    """Returns True for a tensor with elements in memory: not fake, meta, sparse or quantized."""
    dispatch = getattr(type(tensor), "__torch_dispatch__", None)
    return (
        isinstance(tensor, torch.Tensor)
        and (dispatch is None or dispatch is _PLAIN or dispatch is getattr(torch.Tensor, "__torch_dispatch__", None))
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.is_floating_point()
        and not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
    )


def part(tensor: Any, step: int) -> Any:
    """Returns every step-th element of this rank's part, a view where the memory allows one."""
    if tensor.is_contiguous():
        return torch.as_strided(tensor, (-(-tensor.numel() // step),), (step,), tensor.storage_offset())
    return tensor.reshape(-1)[::step]


def blocks_of(tensor: Any, step: int, blocks: int, like: Any = None) -> Any:
    """Returns blocks of WIDTH elements that begin every step elements, in rows, or all elements for no blocks. It is a
    view where the memory allows one. like: a tensor of the same shape whose order in memory counts."""
    strides = tensor.stride() if like is None else like.stride()
    if not tensor.is_contiguous() and (tensor.stride() != strides or not _is_dense(tensor)):
        tensor = (tensor if like is None or like.is_contiguous() else _as(tensor, like)).contiguous()
    if not blocks:
        return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())
    return torch.as_strided(tensor, (blocks, WIDTH), (step, 1), tensor.storage_offset())


def _is_dense(tensor: Any) -> bool:
    return bool(torch._prims_common.is_non_overlapping_and_dense(tensor)) if tensor.dim() in (4, 5) else False


def _as(tensor: Any, like: Any) -> Any:
    """Returns the elements in the order of the memory of another tensor of its shape."""
    order = sorted(range(like.dim()), key=lambda dim: -like.stride(dim))
    return tensor.permute(order)


class Sampled:
    """A parameter in a group: its place in the vectors."""

    def __init__(self, param: Any, limit: int) -> None:
        self.numel = local_part(param).numel()
        self.ref = weakref.ref(param)
        self.key = id(param)
        self.shape, self.requires_grad = tuple(param.shape), param.requires_grad
        self.dtype, self.device = str(param.dtype).removeprefix("torch."), param.device.type
        self.blocks = limit // WIDTH if self.numel > limit else 0
        # an odd distance: an even one would divide the rows of most matrices, and sample a few columns
        self.step = (self.numel // self.blocks - 1) | 1 if self.blocks else 1
        self.count = self.blocks * WIDTH or self.numel
        self.begin = 0
        self.looks = self.without = 0
        self.has_grad = False
        self.grad_dtype = ""

    @property
    def param(self) -> Any:
        return self.ref()

    def value(self) -> Any:
        return blocks_of(local_part(self.param).detach(), self.step, self.blocks)

    def gradient(self) -> Any:
        """Returns the sample of the gradient, None if there is none that can be read."""
        param = self.param
        grad = param.grad
        if grad is None:
            return None
        self.has_grad = True
        self.grad_dtype = str(grad.dtype).removeprefix("torch.")
        local, own = local_part(grad).detach(), local_part(param)
        if not is_readable(local) or local.shape != own.shape:
            return None  # sparse, or of another shape on this rank
        return blocks_of(local, self.step, self.blocks, own)


class Group:
    """Parameters of one device and type, all sampled whole or all in blocks."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.members: list[Sampled] = []
        self.size = 0
        self.old: Any = None
        self.last: Any = None
        self.zero: Any = None
        self.size_of_gradient: Any = None  # at the last look
        self.small_moves: list[Any] = [0.0, 0.0]  # of rounding.py
        self.small_updates: list[Any] = [0.0, 0.0]

    def add(self, member: Sampled) -> None:
        member.begin = self.size
        self.size += member.count
        self.members.append(member)

    def _sums(self) -> None:
        def make(dtype: torch.dtype) -> Any:
            return torch.zeros(self.size, dtype=dtype, device=self.device)

        self.zero = make(self.dtype)
        self.moved, self.seen = make(torch.bool), make(torch.bool)
        self.zeros, self.with_grad, self.still, self.nonfinite, self.tiny = (make(torch.float32) for _ in range(5))
        self.grad_max = make(torch.float32)
        self.grad_min = make(torch.float32).fill_(float("inf"))

    def _values(self) -> Any:
        return torch.cat([member.value() for member in self.members]).view(-1)

    def before(self) -> None:
        """Takes the values before a step."""
        if self.zero is None:
            self._sums()
        self.old = self._values()
        if self.last is not None:
            self.moved |= self.old != self.last

    def gradients(self, scale: float = 1.0) -> Any:
        """Adds the gradients of a step to the sums. Returns the mask of those that are not zero."""
        views = []
        for member in self.members:
            view = member.gradient()
            member.looks += view is not None
            member.without += view is None
            if view is None:
                view = self.zero[member.begin : member.begin + member.count]
                view = view.view(-1, WIDTH) if member.blocks else view
            views.append(view)
        grad = torch.cat(views).view(-1)
        there = grad != 0
        finite = torch.isfinite(grad)
        size = self.size_of_gradient = grad.abs().float()
        self.zeros += ~there
        self.with_grad += there
        self.seen |= there
        self.nonfinite += ~finite
        self.tiny += there & (size * scale < TINY)
        self.grad_max = torch.maximum(self.grad_max, torch.where(finite, size, 0.0))
        self.grad_min = torch.minimum(self.grad_min, torch.where(there & finite, size, float("inf")))
        return there

    def after(self, there: Any, count: Callable[[Group, Any], None] | None = None) -> None:
        """Compares the values after a step with those before. there: mask of the elements with a gradient. count:
        called with the group and the mask, for 16-bit weights."""
        self.last = self._values()
        same = self.last == self.old
        self.moved |= ~same
        if there is not None:
            self.still += same & there
            if count is not None and self.dtype in LOW:
                count(self, there)
        self.old = self.size_of_gradient = None

    def seen_alone(self) -> None:
        """A look without a step: at parameters of no optimizer."""
        if self.zero is None:
            self._sums()
        new = self._values()
        if self.last is not None:
            self.moved |= new != self.last
        self.last = new
        self.gradients()

    def sums(self) -> list[Any]:
        """Returns the vectors of all sums as one tensor of float32, and their number of rows."""
        value = self.last.float()
        shares = (self.zeros, self.with_grad, self.still, self.nonfinite, self.tiny)
        rows = (self.moved, self.seen, self.moved & self.seen, *shares)
        return [*(row.float() for row in rows), self.grad_max, self.grad_min, value]


class Samples:
    """The samples of a set of parameters."""

    def __init__(self, params: Iterable[Any], limit: int = SAMPLE) -> None:
        listed = list(params)
        limit = max(LEAST, min(limit, TOTAL // max(1, len(listed))))
        self.groups: dict[tuple[torch.device, torch.dtype, bool], Group] = {}
        self.unread: list[tuple[str, str]] = []
        self.there: list[Any] = []
        for param in listed:
            local = local_part(param)
            if not is_readable(local):
                self.unread.append((type(param).__name__, str(param.dtype)))
                continue
            member = Sampled(param, limit)
            key = (local.device, local.dtype, bool(member.blocks))
            self.groups.setdefault(key, Group(*key[:2])).add(member)

    def elements(self) -> int:
        return sum(group.size for group in self.groups.values())

    def fits(self) -> bool:
        """Returns False if a parameter is gone, or has another type, device or size since."""
        for (device, dtype, _), group in self.groups.items():
            for member in group.members:
                local = local_part(member.param)
                if local is None or local.dtype != dtype or local.device != device:
                    return False
                if local.numel() != member.numel or not is_readable(local):
                    return False
        return True

    def before(self, gradients: bool, scale: float) -> None:
        """Takes values and, unless a closure is going to make them, gradients. scale: that they had in backward."""
        for group in self.groups.values():
            group.before()
        self.there = [group.gradients(scale) for group in self.groups.values()] if gradients else []

    def after(self, scale: float, outside: bool, count: Callable[[Group, Any], None] | None) -> None:
        """Takes values after a step. outside: those before it are unknown. count: see Group.after."""
        there = self.there or [group.gradients(scale) for group in self.groups.values()]
        for group, mask in zip(self.groups.values(), there):
            group.after(None if outside else mask, count)
        self.there = []

    def close(self) -> None:
        """Takes the last values, at the end of the run."""
        for group in self.groups.values():
            if group.last is not None:
                group.moved |= group._values() != group.last

    def alone(self) -> None:
        for group in self.groups.values():
            group.seen_alone()

    def members(self) -> Iterator[tuple[Sampled, dict[str, float]]]:
        """Yields each parameter with its numbers. This waits for the device: after the run."""
        for group in self.groups.values():
            if group.last is None:
                yield from ((member, {}) for member in group.members)
                continue
            table = torch.stack(group.sums()).cpu()
            for member in group.members:
                yield member, _numbers(table[:, member.begin : member.begin + member.count], member)


def _numbers(table: Any, member: Sampled) -> dict[str, float]:
    if not member.count:
        return {}
    moved, seen, both, zeros, with_grad, still, nonfinite, tiny, grad_max, grad_min, value = table.double()
    looks = max(1, member.looks) * member.count
    finite = value[torch.isfinite(value)].abs()
    least = float(grad_min.min())
    return {
        "moved": int(moved.sum()),
        "grad_seen": int(seen.sum()),
        "moved_of_seen": int(both.sum()),
        "zeros": max(0.0, float(zeros.sum()) - member.without * member.count) / looks,
        "grad_looks": int(with_grad.max()),
        "still": float(still.sum()) / max(1.0, float(with_grad.sum())),
        "tiny": float(tiny.sum()) / max(1.0, float(with_grad.sum())),
        "grad_nonfinite": int(nonfinite.max()),
        "grad_max": float(grad_max.max()),
        "grad_min": least if least != float("inf") else 0.0,
        "weight_max": float(finite.max()) if finite.numel() else 0.0,
        "weight_nonfinite": finite.numel() < value.numel(),
    }
