# SPDX-License-Identifier: Apache-2.0
"""Products of an FP32 matrix and a 16-bit weight, in FP32. The weight is widened in blocks of rows that stay in the
cache of a core: widened as a whole it goes through the memory twice, which takes longer than its product with few rows.

A weight is a matrix r with contiguous rows. These functions are torch's own, found before anything is patched, and
none of them is recorded by autograd.
"""
from __future__ import annotations

from typing import Any

import torch

_mm, _addmm = torch.mm, torch.addmm
_BLOCK = 1 << 17  # elements of a thread, 512 KiB of FP32
_FEW_ROWS = 512  # with more the time of the product counts
_VERY_FEW_ROWS = 128


def is_worth_it(r: torch.Tensor, rows: int) -> bool:
    """Returns True if a product of this many rows and the weight gains by blocks."""
    return r.is_contiguous() and r.numel() >= 2 * _BLOCK * torch.get_num_threads() and rows <= _FEW_ROWS


def _blocks(r: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Returns the number of rows in a block, and memory for them in FP32."""
    rows = max(1, _BLOCK * torch.get_num_threads() // r.shape[1])
    return rows, torch.empty(min(rows, r.shape[0]), r.shape[1])


def _first(memory: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns the first rows. A view takes half of the time of a rounding: only the last block may need one."""
    return memory if len(memory) == rows else memory[:rows]


def by_rows(a: torch.Tensor, r: torch.Tensor, c: Any, alpha: float, beta: float, dtype: torch.dtype) -> torch.Tensor:
    """Returns alpha * (a @ r.t()) + beta * c, rounded to a type if there are few rows. c: FP32, or None."""
    if a.shape[0] <= _VERY_FEW_ROWS:
        return _by_rows_transposed(a, r, c, alpha, beta, dtype)
    out = torch.empty(a.shape[0], r.shape[0])
    rows, wide = _blocks(r)
    parts = c.split(rows, -1) if c is not None and c.dim() and c.shape[-1] == r.shape[0] else None
    for i, (some, to) in enumerate(zip(r.split(rows), out.split(rows, 1), strict=True)):
        factor = _first(wide, len(some)).copy_(some).t()
        if c is None:
            _mm(a, factor, out=to)
        else:
            _addmm(c if parts is None else parts[i], a, factor, alpha=alpha, beta=beta, out=to)
    return out


def _by_rows_transposed(
    a: torch.Tensor, r: torch.Tensor, c: Any, alpha: float, beta: float, dtype: torch.dtype
) -> torch.Tensor:
    """The same as alpha * (r @ a.t()) + beta * c.t(), transposed: the kernel copies a once, not for each block. Each
    block of the result is rounded while it is in the cache, as it lies, because torch rounds and transposes element by
    element. The 16-bit result is transposed as a whole."""
    out = torch.empty(r.shape[0], a.shape[0], dtype=dtype)
    rows, wide = _blocks(r)
    block = torch.empty(len(wide), a.shape[0])
    factor = a.t().contiguous()
    blocks = r.split(rows)
    parts = [None] * len(blocks) if c is None else c.expand(a.shape[0], r.shape[0]).t().split(rows)
    for some, part, to in zip(blocks, parts, out.split(rows), strict=True):
        widened, made = _first(wide, len(some)).copy_(some), _first(block, len(some))
        if part is None:
            _mm(widened, factor, out=made)
        else:
            _addmm(part, widened, factor, alpha=alpha, beta=beta, out=made)
        to.copy_(made)
    return out.t().clone(memory_format=torch.contiguous_format)


def by_columns(a: torch.Tensor, r: torch.Tensor, c: Any, alpha: float, beta: float) -> torch.Tensor:
    """Returns alpha * (a @ r) + beta * c. c: FP32, or None."""
    out = torch.empty(a.shape[0], r.shape[1])
    rows, wide = _blocks(r)
    for i, (some, columns) in enumerate(zip(r.split(rows), a.split(rows, 1), strict=True)):
        factor = _first(wide, len(some)).copy_(some)
        if i:
            _addmm(out, columns, factor, alpha=alpha, out=out)
        elif c is None:
            _mm(columns, factor, out=out)
        else:
            _addmm(c, columns, factor, alpha=alpha, beta=beta, out=out)
    return out


def gradient(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Writes a.t() @ b to r, rounded to its type, and returns it."""
    rows, wide = _blocks(r)
    for some, columns in zip(r.split(rows), a.t().split(rows), strict=True):
        some.copy_(_mm(columns, b, out=_first(wide, len(some))))
    return r
