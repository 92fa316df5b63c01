# SPDX-License-Identifier: Apache-2.0
"""Products of an FP32 matrix and a 16-bit weight, in FP32. The weight is widened in blocks of rows that stay in the
cache of a core: widened as a whole it goes through the memory twice, which takes longer than its product with few rows.

A weight is a matrix r with contiguous rows. These functions are torch's own, found before anything is patched, and
none of them is recorded by autograd.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_mm, _addmm = torch.mm, torch.addmm
_BLOCK = 1 << 17  # elements of a thread, 512 KiB of FP32
_FEW_ROWS = 512  # with more the time of the product counts


def is_worth_it(r: torch.Tensor, rows: int) -> bool:
    """Returns True if a product of this many rows and the weight gains by blocks."""
    return r.is_contiguous() and r.numel() >= 2 * _BLOCK * torch.get_num_threads() and rows <= _FEW_ROWS


def _blocks(r: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yields the rows of a block, and memory for them in FP32."""
    rows = max(1, _BLOCK * torch.get_num_threads() // r.shape[1])
    memory = torch.empty(min(rows, r.shape[0]), r.shape[1])
    for first in range(0, r.shape[0], rows):
        block = slice(first, min(first + rows, r.shape[0]))
        yield block, memory[: block.stop - first]


def by_rows(a: torch.Tensor, r: torch.Tensor, c: Any, alpha: float, beta: float) -> torch.Tensor:
    """Returns alpha * (a @ r.t()) + beta * c. c: FP32, or None."""
    out = torch.empty(a.shape[0], r.shape[0])
    for block, wide in _blocks(r):
        wide.copy_(r[block])
        if c is None:
            _mm(a, wide.t(), out=out[:, block])
        else:
            part = c[..., block] if c.dim() and c.shape[-1] == r.shape[0] else c
            _addmm(part, a, wide.t(), alpha=alpha, beta=beta, out=out[:, block])
    return out


def by_columns(a: torch.Tensor, r: torch.Tensor, c: Any, alpha: float, beta: float) -> torch.Tensor:
    """Returns alpha * (a @ r) + beta * c. c: FP32, or None."""
    out = torch.empty(a.shape[0], r.shape[1])
    for block, wide in _blocks(r):
        wide.copy_(r[block])
        if block.start:
            _addmm(out, a[:, block], wide, alpha=alpha, out=out)
        elif c is None:
            _mm(a[:, block], wide, out=out)
        else:
            _addmm(c, a[:, block], wide, alpha=alpha, beta=beta, out=out)
    return out


def gradient(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Returns a.t() @ b, rounded to the type of r, which has its shape."""
    out = torch.empty_like(r)
    for block, wide in _blocks(r):
        _mm(a[:, block].t(), b, out=wide)
        out[block].copy_(wide)
    return out
