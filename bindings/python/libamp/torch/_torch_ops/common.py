# SPDX-License-Identifier: Apache-2.0
"""Common parts of all kinds of work: batches, copies between types, scalars, selection without a wait."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Tensors = Sequence[Any]  # of torch.Tensor
Number = Any  # a Python number or a tensor of one element

BATCH = 1 << 26  # elements of temporaries at a time

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def single(value: float) -> float:
    """Returns the value as a C float has it."""
    return ctypes.c_float(value).value


def scalar(value: Number) -> Number:
    """Returns a number for torch's list ops: an FP32 value, or a zero-dimensional tensor."""
    return value.detach().reshape(()) if isinstance(value, torch.Tensor) else single(value)


def is_one(value: Number) -> bool:
    """Returns True for a Python number 1, which makes a multiplication unnecessary."""
    return not isinstance(value, torch.Tensor) and value == 1.0


_doubles: dict[Any, Any] = {}  # by device


def double_of(device: Any) -> Any:
    """Returns torch.float64 if the device supports it, else torch.float32."""
    if device not in _doubles:
        _doubles[device] = _find_double(device)
    return _doubles[device]


def _find_double(device: Any) -> Any:
    if device.type == "mps":
        return torch.float32
    if device.type == "xpu" and not getattr(torch.xpu.get_device_properties(device), "has_fp64", True):
        return torch.float32
    try:
        torch.full((1,), 0.5, dtype=torch.float64, device=device).mul_(2.0)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64


def wide_of(*dtypes: Any) -> Any:
    """Returns the type in which libamp computes."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def batches(tensors: Tensors) -> Iterator[slice]:
    """Groups consecutive tensors of about BATCH elements in total."""
    begin = elements = 0
    for i, tensor in enumerate(tensors):
        if elements and elements + tensor.numel() > BATCH:
            yield slice(begin, i)
            begin, elements = i, 0
        elements += tensor.numel()
    if begin < len(tensors):
        yield slice(begin, len(tensors))


def groups(key: Callable[..., Any], *lists: Tensors) -> Iterator[tuple[Any, list[int], list[list[Any]]]]:
    """Groups entries of equal key(...). Yields the key, the indices and the lists."""
    found: dict[Any, list[int]] = {}
    for i, entry in enumerate(zip(*lists, strict=True)):
        found.setdefault(key(*entry), []).append(i)
    for value, which in found.items():
        yield value, which, [[entries[i] for i in which] for entries in lists]


def detached(tensors: Tensors) -> list[Any]:
    return [tensor.detach() for tensor in tensors]


def pair(dst: Tensors, src: Tensors) -> tuple[list[Any], list[Any]]:
    """Detaches both lists. Equal objects remain equal."""
    to = detached(dst)
    return to, [d if of is given else of.detach() for d, of, given in zip(to, src, dst, strict=True)]


# ---- list ops that older versions of torch lack ----

_HAS_COPY = hasattr(torch, "_foreach_copy_")  # 2.1
_BY_TENSOR = frozenset(
    name
    for name in ("mul", "mul_", "div", "div_")
    if "Tensor" in getattr(torch.ops.aten, f"_foreach_{name}").overloads()
)


def each(name: str, tensors: list[Any], other: Any = None) -> Any:
    """Calls torch._foreach_<name> on a list that may be empty. other: a number, a tensor of one element, or a list."""
    if not tensors:
        return []
    if other is None:
        return list(getattr(torch, f"_foreach_{name}")(tensors) or ())
    if isinstance(other, torch.Tensor) and name not in _BY_TENSOR:
        return [getattr(tensor, name)(other) for tensor in tensors]
    return list(getattr(torch, f"_foreach_{name}")(tensors, other) or ())


def copy(dst: Tensors, src: Tensors) -> None:
    """Copies src to dst in dst's type. Entries that are the same object are skipped."""
    which = [i for i in range(len(dst)) if dst[i] is not src[i]]
    pairs = ([dst[i] for i in which], [src[i] for i in which])
    for _, _, (to, of) in groups(lambda d, s: (d.dtype, s.dtype), *pairs):
        if _HAS_COPY:
            torch._foreach_copy_(to, of)
        else:
            for d, s in zip(to, of, strict=True):
                d.copy_(s)


def converted(tensors: Tensors, dtype: Any, fresh: bool = False) -> list[Any]:
    """Returns the tensors in dtype. Those of that type are returned as they are, or copied with `fresh`."""
    made = [
        tensor if tensor.dtype == dtype and not fresh else torch.empty_like(tensor, dtype=dtype, requires_grad=False)
        for tensor in tensors
    ]
    copy(made, tensors)
    return made


def select(dst: Tensors, src: Tensors, take: Any) -> None:
    """Copies src to dst where `take` is true, a bool tensor of one element or a list of them. Elsewhere no bit changes.
    The lists have equal types. src is consumed."""
    takes = take if isinstance(take, list) else [take] * len(dst)
    for dtype, which, (to, of) in groups(lambda d, s: d.dtype, dst, src):
        integer = _INTEGERS[dtype.itemsize if hasattr(dtype, "itemsize") else torch.finfo(dtype).bits // 8]
        if isinstance(take, list):
            yes: Any = [takes[i].reshape(()).to(integer) for i in which]
            no: Any = [1 - one for one in yes]
        else:
            yes = take.reshape(()).to(integer)
            no = 1 - yes
        old, new = [d.view(integer) for d in to], [s.view(integer) for s in of]
        each("mul_", new, yes)  # 0 times any bits is 0: one of the two is
        each("mul_", old, no)
        each("add_", old, new)


def flat(tensors: Tensors) -> Any:
    """Returns all elements of a list of one type in sequence."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflat(values: Any, like: Tensors) -> list[Any]:
    parts = values.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


# ---- reports of nonfinite elements ----


def nonfinite(tensors: Tensors) -> Any:
    """Returns a bool for each tensor, on the device: True if an element is infinite or NaN."""
    which = [i for i, tensor in enumerate(tensors) if tensor.numel()]
    made: list[Any] = [None] * len(tensors)
    for _, places, (same,) in groups(lambda t: t.dtype, [tensors[i] for i in which]):
        for place, largest in zip(places, torch._foreach_norm(same, float("inf")), strict=True):
            made[which[place]] = largest.float() if largest.dtype in (torch.float16, torch.bfloat16) else largest
    if len(which) < len(made):
        nothing = torch.zeros((), device=tensors[0].device)
        made = [nothing if one is None else one for one in made]
    return ~torch.isfinite(torch.stack(made))


def report(found: Any, found_inf: Any = None, first: Any = None, base: int = 0) -> None:
    """Updates found_inf and first. found: a bool for each tensor."""
    if found_inf is not None:
        found_inf.masked_fill_(found.any(), 1.0)
    if first is None:
        return
    where = torch.arange(base, base + found.numel(), dtype=torch.int32, device=found.device)
    none = torch.iinfo(torch.int32).max
    least = torch.where(found, where, torch.full_like(where, none)).min()
    lower = (least != none) & ((first < 0) | (least < first))  # as a uint32, 0xffffffff is none
    first.copy_(torch.where(lower, least.to(first.dtype), first))


def wants_report(found_inf: Any, first: Any) -> bool:
    return found_inf is not None or first is not None
