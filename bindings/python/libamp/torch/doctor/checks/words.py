# SPDX-License-Identifier: Apache-2.0
"""Numbers and names in the words of a finding."""

from __future__ import annotations

from collections.abc import Sequence

from ...._findings import Place
from ..watch import NOWHERE, Param, Run, Scaler

LOW = ("float16", "bfloat16")
HALF_MAX = 65504.0  # largest number of fp16
HALF_LEAST = 2.0**-24  # smallest positive number of fp16
HALF_ZERO = 2.0**-25  # numbers up to it become 0 in fp16
NAMED = 3  # names in a finding


def share(part: float, whole: float = 1.0) -> str:
    """Returns a share in words that never rounds to none or all: "0.4 %", "60 %"."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1 or 99 < percent < 100:
        return f"{percent:.2g} %" if percent < 1 else f"{percent:.1f} %" if percent < 99.95 else "over 99.9 %"
    return f"{percent:.0f} %"


def size(number: float) -> str:
    """Returns a number in three digits: 9e+04 is 9e4."""
    text = f"{number:.3g}"
    head, found, exponent = text.partition("e")
    return f"{head}e{int(exponent)}" if found else text


def others(names: Sequence[str]) -> str:
    """Returns the rest of a list whose first name is the subject: "; also fc.bias, norm.weight and 3 more"."""
    rest = list(dict.fromkeys(names))[1:]
    if not rest:
        return ""
    more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
    return f"; also {', '.join(rest[:NAMED])}{more}"


def scaled_by(run: Run) -> list[Scaler]:
    """Returns the scalers that are enabled and were used."""
    return [scaler for scaler in run.scalers if scaler.enabled and (scaler.scales or scaler.steps)]


def uses_half(run: Run) -> bool:
    """Returns True if gradients pass through fp16: trained under autocast, or in fp16 weights. An evaluation under
    autocast is told by the ops of the backward that was watched, if there was one."""
    lowered = any(region.enabled and region.dtype == "float16" and region.regions for region in run.autocasts)
    backward = [op for op in run.ops if op.backward]
    if lowered and backward:
        lowered = any("float16" in (op.output, *op.inputs) for op in backward)
    return (lowered and run.backwards > 0) or any(param.dtype == "float16" and param.has_grad for param in run.params)


def where(run: Run, place: Place = NOWHERE) -> Place:
    """Returns a line of the script, that of the first optimizer step if no nearer one is known: a class of torch's has
    none, and neither has a tensor."""
    if place.filename:
        return place
    return next((optimizer.place for optimizer in run.optimizers if optimizer.place.filename), NOWHERE)


def is_matrix(param: Param) -> bool:
    return len(param.shape) > 1
