# SPDX-License-Identifier: Apache-2.0
"""Findings about gradients in fp16: those that became 0, and a loss scale that nobody made."""

from __future__ import annotations

from collections.abc import Iterable

from ...._findings import Place
from ...._words import counted
from ..watch import Found, Param, Run
from .words import HALF_LEAST, is_matrix, others, scaled_by, share, size, uses_half, where

# Layers that begin at 0 (LoRA's B, zero-initialized residuals) give gradients of 0 to others for a step or two.
LOOKS = 5
_ZEROS = 0.5
# Zeros alone are no underflow: dead units, unused rows and masks give them too. Underflow also leaves gradients among
# the last numbers of fp16, where a healthy gradient has one of thousands.
_TINY = 0.1


def _judged(run: Run) -> list[Param]:
    return [param for param in run.params if param.trained and param.looks >= LOOKS and param.sampled]


def check_underflow(run: Run) -> Iterable[Found]:
    """AMP-D02. With a scaler; AMP-D03 is without."""
    scalers = scaled_by(run)
    if not scalers or not uses_half(run):
        return
    params = _judged(run)
    found = [param for param in params if param.zeros >= _ZEROS and param.tiny >= _TINY]
    # A whole gradient of 0 has no last numbers: then most of the parameters must have it, while the loss has a value.
    none = [param for param in params if not param.grad_looks]
    if 2 * len(none) > len(params) and any(loss.value for loss in run.losses):
        found = none
    if found:
        found.sort(key=lambda param: -param.zeros)
        worst, scaler = found[0], scalers[0]
        saw = f"{share(worst.zeros)} of its gradient is 0 at a loss scale of {size(scaler.scale)}"
        if worst.tiny:
            saw += f", and {share(worst.tiny)} of the rest is in the last bits of fp16"
        names = [param.name for param in found]
        yield Found("AMP-D02", worst.name, saw + others(names), scaler.place, worst.zeros)


def _scaled_by_hand(run: Run) -> bool:
    """Returns True if the script scales its loss itself, as the loss or the gradients show. Gradients of products in
    fp16 are multiples of its smallest number: smaller ones were divided later. A clip divides too, and then nothing is
    known."""
    if run.scaled_by_hand:
        return True
    least = [param.grad_min for param in run.params if is_matrix(param) and param.grad_min]
    small = [each for each in least if each < 0.75 * HALF_LEAST]
    return not run.clips and bool(least) and 2 * len(small) > len(least)


def check_no_scaler(run: Run) -> Iterable[Found]:
    """AMP-D03. fp16 in evaluation alone needs no scale, and neither does a loss that the script scales by hand."""
    if scaled_by(run) or run.libamp or "deepspeed" in run.frameworks or not uses_half(run) or _scaled_by_hand(run):
        return
    params = [param for param in run.params if param.trained and param.looks]
    if not params:
        return
    params.sort(key=lambda param: -param.zeros)
    zeros = sum(param.zeros for param in params) / len(params)
    worst = params[0]
    saw = (
        f"{share(zeros)} of the gradients are 0, {share(worst.zeros)} of {worst.name}'s, in "
        f"{counted(max(param.looks for param in params), 'step')} without a scale"
    )
    disabled = [scaler for scaler in run.scalers if not scaler.enabled]
    if disabled:
        saw += "; the GradScaler is made with enabled=False"
    yield Found("AMP-D03", worst.name, saw, _place(run), zeros)


def _place(run: Run) -> Place:
    for region in run.autocasts:
        if region.enabled and region.dtype == "float16":
            return where(run, region.place)
    return where(run)
