# SPDX-License-Identifier: Apache-2.0
"""Finds buffers that lose their meaning in 16 bits, from their values.

Rounding changes a number by up to 2^-11 (fp16) or 2^-8 (bf16) of it, which weights, masks, statistics, and tables of
sines tolerate. A buffer is ruined if

- its largest number becomes infinite, or is off by 1/64 (below 2^-19 in fp16),
- it has whole or half numbers alone (positions, coordinates), and one of them changes (2049 in fp16, 257 in bf16),
- it has one dimension, rises or falls throughout (a grid of times, noise levels), and two neighbours become equal,
- it has one dimension of positive numbers up to pi that rise or fall by a factor of 100 (the frequencies of rotary or
  sinusoidal positions), and the angle at position 4096 is off by 0.1 or more,
- it has two dimensions, and row i is i times row 1 (angles of positions), and a number is off by 0.1 or more.

A mask is never ruined: all numbers that change are one negative number. Buffers of more than 2^26 numbers (caches of
keys and values) are not judged, since that takes copies of them.
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from ... import _core, _findings
from . import kept_buffers, retype
from .properties import torch_type

_LARGEST_ERROR = 1 / 64
_POSITION = 4096
_ANGLE = 0.1
_MOST = 1 << 26
_SPAN = 100.0
CODE = "AMP-M50"
_LISTED = 8  # lines in a survey


def _shown(number: Any) -> str:
    return f"{float(number):.6g}"


def _is_mask(changed: torch.Tensor) -> bool:
    """Returns True if the numbers that change are one negative number: attention is masked with -1e9 and the like."""
    return bool((changed < 0).all()) and bool((changed == changed[0]).all())


def _range(x: torch.Tensor, r: torch.Tensor) -> str | None:
    infinite = r.isinf()
    if infinite.any():
        return f"{_shown(x[infinite][x[infinite].abs().argmax()])} becomes infinite"
    at = x.abs().argmax()
    largest, rounded = x[at], r[at]
    if (rounded - largest).abs() > _LARGEST_ERROR * largest.abs():
        return f"its largest number, {_shown(largest)}, becomes {_shown(rounded)}"
    return None


def _whole(x: torch.Tensor, r: torch.Tensor) -> str | None:
    if not bool(((2 * x).frac() == 0).all()):
        return None
    changed = int((r != x).sum())
    at = (r - x).abs().argmax()
    numbers = f"{changed} of {x.numel()} whole or half numbers change" if changed > 1 else "a whole number changes"
    return f"{numbers}: {_shown(x[at])} becomes {_shown(r[at])}"


def _steps(x: torch.Tensor, r: torch.Tensor) -> str | None:
    """For one dimension: neighbours that become equal, and frequencies."""
    steps = x.diff()
    if len(x) < 3 or not bool((steps > 0).all() | (steps < 0).all()):
        return None
    equal = r.diff() == 0
    if equal.any():
        at = equal.int().argmax()
        pair = f"{float(x[at]):.9g} and {float(x[at + 1]):.9g} become {_shown(r[at])}"
        return f"{int(equal.sum())} of {len(steps)} pairs of neighbours become equal: {pair}"
    least, most = x.min(), x.max()
    if least > 0 and most <= torch.pi and most >= _SPAN * least:
        return _angle(float((r - x).abs().max()) * _POSITION, f"an angle at position {_POSITION}")
    return None


def _rows(x: torch.Tensor, r: torch.Tensor) -> str | None:
    """For two dimensions: angles of positions."""
    if len(x) < 3 or x[0].any():
        return None
    position = torch.arange(len(x), dtype=x.dtype, device=x.device)[:, None]
    if not torch.allclose(position * x[1], x, rtol=1e-3, atol=1e-6):
        return None
    return _angle(float((r - x).abs().max()), "an angle of a position")


def _angle(error: float, what: str) -> str | None:
    cosine = 2 * math.sin(min(error, math.pi) / 2)
    return f"{what} is off by {error:.2g}, and its cosine by up to {cosine:.2g}" if error > _ANGLE else None


@torch.no_grad()
def damage(tensor: torch.Tensor, low: torch.dtype) -> str | None:
    """Returns the damage by rounding to the 16-bit type in words, None if there is none by the criteria above."""
    if tensor.numel() > _MOST:
        return None
    x = tensor.detach().float()
    x = torch.where(x.isfinite(), x, 0.0)
    r = x.to(low).float()
    if torch.equal(x, r):
        return None
    shaped = x.squeeze(), r.squeeze()
    by_shape = {1: _steps, 2: _rows}.get(shaped[0].dim(), lambda x, r: None)
    x, r = x.flatten(), r.flatten()
    return None if _is_mask(x[x != r]) else _range(x, r) or _whole(x, r) or by_shape(*shaped)


class Damaged(NamedTuple):
    """A buffer that rounding ruins. levels: those that round it."""

    name: str
    words: str
    size: int
    levels: tuple[str, ...] = ()


def damaged(
    models: Iterable[nn.Module],
    low: torch.dtype | None,
    keeps_batch_norm: bool,
    kept: Iterable[kept_buffers.Owned] = (),
) -> list[Damaged]:
    """Returns the buffers of these models that rounding to `low` ruins. kept: those that stay FP32."""
    found: list[Damaged] = []
    seen = {id(buffer.tensor) for buffer in kept}
    for buffer in kept_buffers.owned(models, "_buffers") if low in retype.LOW else ():
        tensor = buffer.tensor
        if id(tensor) in seen or not retype.is_plain(tensor) or tensor.dtype is low:
            continue
        seen.add(id(tensor))
        words = None if keeps_batch_norm and retype.is_kept(buffer.owner) else damage(tensor, low)
        if words is not None:
            found.append(Damaged(buffer.name, f"in {str(low).removeprefix('torch.')} {words}", tensor.numel()))
    return found


def by_level(models: list[nn.Module]) -> list[Damaged]:
    """Returns the buffers that some level ruins, one entry for each kind of damage."""
    levels: dict[Damaged, list[str]] = {}
    for level in _core.levels():
        resolved = _core.resolve(level, {})
        low = torch_type(resolved["cast_model_type"])
        for each in damaged(models, low, bool(resolved["keep_batchnorm_fp32"])):
            levels.setdefault(each, []).append(level)
    return [each._replace(levels=tuple(names)) for each, names in levels.items()]


# ---- for people ----


def _patterns(names: list[str]) -> list[str]:
    """Returns names for keep_buffers_fp32, one pattern for all buffers of the same last name."""
    leaves: dict[str, list[str]] = {}
    for name in names:
        leaves.setdefault(name.rpartition(".")[2], []).append(name)
    found: list[str] = []
    for leaf, full in leaves.items():
        found += [f"*.{leaf}"] if len(full) > 1 and all("." in name for name in full) else full
    return found


def text_of(found: list[Damaged]) -> str:
    """Returns the part of a survey's text about buffers."""
    if not found:
        return ""
    title, _, mend = _findings.FINDINGS[CODE]
    lines = [f"  buffer {each.name}: {each.words} [{' '.join(each.levels)}]" for each in found[:_LISTED]]
    lines += [f"  and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    names = list(dict.fromkeys(each.name for each in found))
    return "\n".join([f"{CODE}: {title}", *lines, f"  -> {mend}: keep_buffers_fp32={_patterns(names)!r}", ""])


def report(record: _findings.Record, found: list[Damaged]) -> None:
    """Reports the buffers that a level has ruined, all in one finding."""
    if not found:
        return
    names = [each.name for each in found]
    more = f"; also {kept_buffers.listed(names[1:])}" if len(names) > 1 else ""
    option = f"keep_buffers_fp32={_patterns(names)!r} keeps {'it' if len(names) == 1 else 'them'} in FP32"
    record.report(CODE, names[0], f"{found[0].words}{more}; {option}")
