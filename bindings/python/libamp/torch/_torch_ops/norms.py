# SPDX-License-Identifier: Apache-2.0
"""L2 norms, and the check for nonfinite elements without writes."""

from __future__ import annotations

from typing import Any

import torch

from .common import (
    Number,
    Tensors,
    batches,
    converted,
    detached,
    double_of,
    each,
    groups,
    is_one,
    nonfinite,
    report,
    scalar,
    wants_report,
    wide_of,
)

_HAS_DTYPE = "dtype" in str(torch.ops.aten._foreach_norm.Scalar._schema)


def _l2(tensors: list[Any], double: Any) -> list[Any]:
    """Returns the norms of nonempty tensors of one wide type."""
    if _HAS_DTYPE:
        return list(torch._foreach_norm(tensors, 2, dtype=double))
    return [torch.linalg.vector_norm(tensor, dtype=double) for tensor in tensors]


def _scaled_l2(tensors: list[Any]) -> list[Any]:
    """Returns the norms in FP32 only: it squares values within 1, or nonfinite ones."""
    largest = torch.stack(list(torch._foreach_norm(tensors, float("inf"))))
    by = torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))
    parts = each("div", tensors, list(by.unbind()))
    return list((torch.stack(list(torch._foreach_norm(parts, 2))) * by).unbind())


def norms_of(tensors: Tensors) -> Any:
    """Returns the norms of FP32 or fp64 tensors in one tensor, computed in double where the device supports it."""
    device = tensors[0].device
    double = double_of(device)
    made: list[Any] = [None] * len(tensors)
    which = [i for i, tensor in enumerate(tensors) if tensor.numel()]
    for _, places, (same,) in groups(lambda t: t.dtype, [tensors[i] for i in which]):
        found = _l2(same, double) if double == torch.float64 else _scaled_l2(same)
        for place, norm in zip(places, found, strict=True):
            made[which[place]] = norm
    if len(which) < len(made):
        nothing = torch.zeros((), dtype=double, device=device)
        made = [nothing if one is None else one for one in made]
    return torch.stack(made)


def norm_of_norms(norms: Any) -> Any:
    """Returns the norm of all, with one dimension less."""
    if norms.dtype == torch.float64:
        return torch.linalg.vector_norm(norms)
    return _scaled_l2([norms])[0]


def scaled(tensors: Tensors, scale: Number, factor: Number = 1.0) -> list[Any]:
    """Returns src * scale * factor, both products rounded to FP32 (fp64: to double), or the tensors themselves if
    nothing changes."""
    made: list[Any] = [None] * len(tensors)
    for dtype, which, (same,) in groups(lambda t: wide_of(t.dtype), tensors):
        work = converted(same, dtype)
        for by in (scale, factor):
            work = work if is_one(by) else each("mul", work, by)
        for i, one in zip(which, work, strict=True):
            made[i] = one
    return made


@torch.no_grad()
def check(
    src: Tensors,
    scale: Number = 1.0,
    factor: Number = 1.0,
    *,
    norm: Any = None,
    norms: Any = None,
    found_inf: Any = None,
    first: Any = None,
    base: int = 0,
) -> None:
    """Computes norms of x = src * scale * factor, without writing x: `norm`, one float, of all elements, norms[i] of
    tensor i. Reports elements of x that are not finite."""
    scale, factor = scalar(scale), scalar(factor)
    if not len(src):
        if norm is not None:
            norm.zero_()
        return
    found = []
    for part in batches(src):
        x = scaled(detached(src[part]), scale, factor)
        if norm is not None or norms is not None:
            found.append(norms_of(x))
        if not wants_report(found_inf, first):
            continue
        # Squares of FP32 are finite in double. Those of fp64, and scaled norms, need not be.
        plain = found and found[-1].dtype == torch.float64 and all(one.dtype == torch.float32 for one in x)
        report(~torch.isfinite(found[-1]) if plain else nonfinite(x), found_inf, first, base + part.start)
    if found:
        all_norms = torch.cat(found)
        if norms is not None:
            norms.copy_(all_norms.reshape(norms.shape))
        if norm is not None:
            norm.copy_(norm_of_norms(all_norms).reshape(norm.shape))
