# SPDX-License-Identifier: Apache-2.0
"""amp_statistics: adds counts of binades, extremes and sums to structures in device memory."""

from __future__ import annotations

from typing import Any

import torch

from .common import Tensors, detached, double_of

BINADES, LEAST = 277, -149  # AMP_BINADES, AMP_BINADE_LEAST
WORDS = 12 + 4 * BINADES  # of 8 bytes: a structure
_ELEMENTS, _ZEROS, _ABOVE, _LARGEST, _SMALLEST, _SUM, _SQUARES, _FIRST_BINADE = 1, 2, 7, 8, 9, 10, 11, 12

# Rows: four classes for each binade (powers of two, most others, tops of bf16, tops of fp16, which are bf16's too),
# then the words from zeros to above.
_CLASSES = 4
_ROWS = _CLASSES * BINADES + 6
_ZERO, _NAN, _PLUS, _MINUS, _BELOW, _BEYOND = range(_CLASSES * BINADES, _ROWS)

_CHUNK = 1 << 22
_ONE = 1 << 52  # in a double's exponent
_INFINITY = 0x7FF << 52


def _rows(bits: Any, magnitude: Any) -> Any:
    """Returns the row of each element, from the bits of a double."""
    mantissa = magnitude & (_ONE - 1)
    at = (magnitude >> 52) - 1023 - LEAST
    kind = (mantissa != 0).to(torch.int64) + (mantissa >= _ONE - (_ONE >> 8)) + (mantissa >= _ONE - (_ONE >> 11))
    row = at * _CLASSES + kind
    row = torch.where(at < 0, _BELOW, torch.where(at >= BINADES, _BEYOND, row))
    row = torch.where(magnitude == 0, _ZERO, row)
    infinite = torch.where(bits < 0, _MINUS, _PLUS)
    return torch.where(magnitude == _INFINITY, infinite, torch.where(magnitude > _INFINITY, _NAN, row))


def _add_chunk(values: Any, words: Any) -> None:
    """Adds a chunk. words: a structure as int64, with doubles in words 8 to 11."""
    x = values.double()
    bits = x.view(torch.int64)
    magnitude = bits & 0x7FFFFFFFFFFFFFFF
    rows = _rows(bits, magnitude)
    counts = torch.zeros(_ROWS, dtype=torch.int64, device=x.device)
    counts.scatter_add_(0, rows, torch.ones((), dtype=torch.int64, device=x.device).expand(rows.shape))
    words[_ELEMENTS] += x.numel()
    words[_ZEROS : _ABOVE + 1] += counts[_ZERO:]
    classes = counts[: _CLASSES * BINADES].view(BINADES, _CLASSES)
    binades = words[_FIRST_BINADE:].view(BINADES, 4)
    binades[:, 0] += classes.sum(1)
    binades[:, 1] += classes[:, 0]
    binades[:, 2] += classes[:, 2] + classes[:, 3]
    binades[:, 3] += classes[:, 3]
    doubles = words[_LARGEST : _SQUARES + 1].view(torch.float64)
    size, finite = x.abs(), magnitude < _INFINITY
    largest = torch.where(finite, size, torch.zeros_like(size)).max()
    least = torch.where(finite & (magnitude != 0), size, torch.full_like(size, float("inf"))).min()
    before = torch.where(doubles[1] > 0, doubles[1], torch.full_like(doubles[1], float("inf")))
    least = torch.minimum(least, before)
    doubles[0] = torch.maximum(doubles[0], largest)
    doubles[1] = torch.where(torch.isfinite(least), least, torch.zeros_like(least))
    doubles[2] += x.sum()
    doubles[3] += (x * x).sum()


@torch.no_grad()
def statistics(src: Tensors, out: Any) -> None:
    """Adds the statistics of src to `out`, contiguous memory of len(src) amp_statistics in any type of their size.
    Counts and extremes are the CPU's, sums have another order. Raises NotImplementedError on a device without FP64."""
    if not len(src):
        return
    if double_of(src[0].device) != torch.float64:
        raise NotImplementedError(f"statistics are counted in FP64, which {src[0].device} has not: copy to the CPU")
    structures = out.detach().view(-1).view(torch.int64).view(len(src), WORDS)
    for words, tensor in zip(structures.unbind(), detached(src), strict=True):
        if tensor.numel():
            for chunk in tensor.reshape(-1).split(_CHUNK):
                _add_chunk(chunk, words)
