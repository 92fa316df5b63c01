# SPDX-License-Identifier: Apache-2.0
"""Elementwise work with libamp's formulas, operation by operation."""

from __future__ import annotations

from typing import Any

import torch

from .common import (
    Number,
    Tensors,
    batches,
    converted,
    copy,
    detached,
    double_of,
    each,
    flat,
    groups,
    is_one,
    nonfinite,
    pair,
    report,
    scalar,
    select,
    single,
    unflat,
    wants_report,
    wide_of,
)


@torch.no_grad()
def factor_of(pointer: Any = None, value: float = 1.0, how: str = "as_it_is") -> Number:
    """Returns the factor of an amp_factor. pointer: a tensor of one element on the device, None uses value. how:
    "as_it_is", "inverse" for its reciprocal, or "clip": the pointer is a norm, and the factor reduces it to value."""
    if pointer is None:
        return single(value)
    number = pointer.detach().reshape(())
    if how == "as_it_is":
        return number
    if how == "inverse":
        return torch.reciprocal(number)
    double = double_of(number.device)
    factor = (single(value) / (number.to(double) + 1e-6)).float()
    return torch.where(torch.isfinite(number) & (factor < 1.0), factor, torch.ones_like(factor))


# ---- copies ----


@torch.no_grad()
def cast(dst: Tensors, src: Tensors, only_if: Any = None) -> None:
    """Computes dst = src in dst's type. Where only_if, a tensor of one element, is 0, dst does not change."""
    if not len(dst):
        return
    if only_if is None:
        copy(detached(dst), detached(src))
        return
    take = only_if.detach() != 0
    for part in batches(dst):
        to = detached(dst[part])
        made = [torch.empty_like(tensor) for tensor in to]
        copy(made, detached(src[part]))
        select(to, made, take)


@torch.no_grad()
def zero(dst: Tensors) -> None:
    """Sets every element to +0."""
    for _, _, (same,) in groups(lambda d: d.dtype, detached(dst)):
        torch._foreach_zero_(same)


# ---- arithmetic ----


def _has_torchs_kernel(device: Any) -> bool:
    try:
        key = torch._C._dispatch_key_for_device(device.type)
        name = "aten::_amp_foreach_non_finite_check_and_unscale_"
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
    except (AttributeError, RuntimeError):
        return False


def _unscales_as_torch(dst: Tensors, src: Tensors, by: Number, first: Any) -> bool:
    """Returns True if torch's own unscale kernel can be used. It checks the input instead of the product. In FP32, in
    place, with a factor of at most 1, both are finite together."""
    if first is not None or isinstance(by, torch.Tensor) or not abs(by) <= 1.0 or not len(dst):
        return False
    same = all(d is s and d.dtype == torch.float32 and d.layout == torch.strided for d, s in zip(dst, src, strict=True))
    return same and _has_torchs_kernel(dst[0].device)


@torch.no_grad()
def scale(
    dst: Tensors, src: Tensors, by: Number, *, found_inf: Any = None, first: Any = None, base: int = 0
) -> None:
    """Computes dst = src * by, rounded to FP32 (fp64: to double), then to dst's type. Reports elements that are not
    finite in dst."""
    by = scalar(by)
    if found_inf is not None and _unscales_as_torch(dst, src, by, first):
        factor = torch.full((1,), by, dtype=torch.float32, device=dst[0].device)
        found = found_inf.detach().reshape(1)
        torch._amp_foreach_non_finite_check_and_unscale_(detached(dst), found, factor)
        return
    for part in batches(dst):
        to, of = pair(dst[part], src[part])
        types = [wide_of(one.dtype) for one in of]
        work = [
            d if d.dtype == dtype else torch.empty_like(d, dtype=dtype) for d, dtype in zip(to, types, strict=True)
        ]
        copy(work, of)
        if not is_one(by):
            for _, _, (same,) in groups(lambda w: w.dtype, work):
                each("mul_", same, by)
        copy(to, work)
        if wants_report(found_inf, first):
            report(nonfinite(to), found_inf, first, base + part.start)


def _products(a: Number, x: Tensors, dtype: Any) -> list[Any]:
    """Returns a * x in dtype, or x itself if nothing changes."""
    wide = converted(x, dtype)
    return wide if is_one(a) else each("mul", wide, a)


def _linear(to: list[Any], a: Number, x: Tensors, b: Number, y: Tensors, looks: bool = False) -> list[Any]:
    """Computes dst = a * x + b * y. looks: returns the elements of the sums to report."""
    seen: list[Any] = [None] * len(to)
    for dtype, which, (d, u, v) in groups(lambda d, u, v: wide_of(u.dtype, v.dtype), to, x, y):
        products = _products(a, u, dtype)
        sums = each("add", products, _products(b, v, dtype))
        if looks and dtype == torch.float32:
            for i, product, older in zip(which, products, v, strict=True):
                seen[i] = torch.isfinite(older) | ~torch.isfinite(product)
        copy(d, sums)
    return seen


@torch.no_grad()
def axpby(
    dst: Tensors,
    a: Number,
    x: Tensors,
    b: Number,
    y: Tensors,
    *,
    found_inf: Any = None,
    first: Any = None,
    base: int = 0,
    y_was_reported: bool = False,
) -> None:
    """Computes dst = a * x + b * y: three operations, each rounded to FP32 (to double if x or y is fp64), then to dst's
    type. y_was_reported: reports only elements where a * x is not finite, or the sum is not and y is. Not for fp64."""
    a, b = scalar(a), scalar(b)
    reports = wants_report(found_inf, first)
    for part in batches(dst):
        to = detached(dst[part])
        seen = _linear(to, a, detached(x[part]), b, detached(y[part]), reports and y_was_reported)
        if reports:
            shown = [
                d if one is None else torch.where(one, d, torch.zeros_like(d)) for d, one in zip(to, seen, strict=True)
            ]
            report(nonfinite(shown), found_inf, first, base + part.start)


@torch.no_grad()
def clamp(dst: Tensors, src: Tensors, limit: float) -> None:
    """Computes dst = src limited to -limit .. limit, in FP32 (fp64: in double), then in dst's type. A NaN remains
    NaN."""
    limit = single(limit)
    for part in batches(dst):
        to, of = pair(dst[part], src[part])
        for dtype, _, (d, s) in groups(lambda d, s: wide_of(s.dtype), to, of):
            work = each("clamp_max", converted(s, dtype), limit)
            each("clamp_min_", work, -limit)
            copy(d, work)


# ---- 16 bits ----


@torch.no_grad()
def round_through(
    dst: Tensors, src: Tensors, low: Any, *, found_inf: Any = None, first: Any = None, base: int = 0
) -> None:
    """Computes dst = src rounded through `low`, fp16 or bf16. Both lists are FP32. Reports finite elements that become
    nonfinite."""
    for part in batches(dst):
        to, of = pair(dst[part], src[part])
        rounded = converted(of, low)
        lost = None
        if wants_report(found_inf, first):
            lost = [torch.isinf(r) & torch.isfinite(s) for r, s in zip(rounded, of, strict=True)]
        copy(to, rounded)
        if lost is not None:
            report(torch.stack([one.any() for one in lost]), found_inf, first, base + part.start)


@torch.no_grad()
def reconcile(dst: Tensors, src: Tensors, low: Any = None, norms: Any = None) -> None:
    """Sets FP32 dst to src where rounded dst differs from src (all NaNs are equal), and in all of tensor i where
    norms[i] is 0. src: fp16 or bf16, or FP32 with values of `low`."""
    whole = None if norms is None else (norms.detach() == 0).unbind()
    for part in batches(dst):
        for dtype, which, (d, s) in groups(lambda d, s: s.dtype, detached(dst[part]), detached(src[part])):
            if not sum(one.numel() for one in d):
                continue
            exact, shown = flat(d), flat(s)
            rounded = exact.to(low).to(dtype) if dtype == torch.float32 else exact.to(dtype)
            bits = torch.int32 if dtype == torch.float32 else torch.int16
            take = (rounded.view(bits) != shown.view(bits)) & ~(torch.isnan(rounded) & torch.isnan(shown))
            if whole is not None:
                all_of = [whole[part.start + i].expand(one.numel()) for i, one in zip(which, d, strict=True)]
                take = take | torch.cat(all_of)
            copy(d, unflat(torch.where(take, shown.to(exact.dtype), exact), d))
