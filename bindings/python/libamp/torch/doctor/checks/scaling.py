# SPDX-License-Identifier: Apache-2.0
"""Findings about the loss scale and the order of the calls around it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...._findings import Place
from ...._words import counted
from ..watch import Cause, Change, Found, Optimizer, Run, Scaler
from .words import scaled_by, size

# A scale of 65536 that must fall to 64 skips ten steps: the search for a scale is no fault.
SEARCH = 10
_FALLS = 16.0  # a scale that began at 2 and is at 1 did not fall to its floor


def first_cause(run: Run) -> Cause | None:
    """Returns the first cause, those in gradients last: they may be a scaler's search for its scale."""
    return min(run.causes, key=lambda cause: cause.kind == "gradient", default=None)


def cause_in_words(cause: Cause) -> str:
    """Returns the first cause as a clause: "exp in encoder.0.attn (SelfAttention) gave inf in float16, from finite
    inputs up to 90"."""
    where = f" in {cause.module_kind}" if cause.module_kind else ""
    where = f" in {cause.module} ({cause.module_kind})" if cause.module else where
    if cause.kind == "batch":
        return f"the batch has {cause.value} in {cause.subject}"
    if cause.kind == "weight":
        return f"the weight {cause.subject} has {cause.value}"
    if cause.kind in ("op", "gradient"):
        of = "the backward of " if cause.kind == "gradient" else ""
        text = f"{of}{cause.subject}{where} gave {cause.value}"
        text += f" in {cause.output_dtype}" if cause.output_dtype else ""
        return text + f", from {_inputs(cause)}"
    return "the cause was not seen"


def _inputs(cause: Cause) -> str:
    if not cause.finite:
        return "an infinity that the script wrote"
    return f"finite inputs up to {size(cause.input_largest)}"


def _is_stuck(run: Run, scaler: Scaler) -> bool:
    """Returns True if skips are no search for a scale. A loss that is not finite is not in the scale's power."""
    if scaler.skips < scaler.steps:
        return scaler.skips_in_a_row >= 2 * SEARCH
    bad = run.nonfinite_losses >= 3 and run.nonfinite_losses >= scaler.steps
    return scaler.steps >= SEARCH or (scaler.steps >= 3 and bad)


def check_all_skipped(run: Run) -> Iterable[Found]:
    """AMP-D04, with the first cause."""
    for scaler in scaled_by(run):
        if scaler.steps and _is_stuck(run, scaler):
            cause = first_cause(run)
            if scaler.skips == scaler.steps:
                saw = f"{scaler.skips} of {counted(scaler.steps, 'step')} were skipped"
            else:
                saw = f"the last {scaler.skips_in_a_row} of {counted(scaler.steps, 'step')} were skipped"
            saw += f": {cause_in_words(cause)}" if cause is not None else f", the scale is {size(scaler.scale)}"
            subject = "" if cause is None else cause.module or cause.subject
            place = scaler.place if cause is None or not cause.place.filename else cause.place
            yield Found("AMP-D04", subject, saw, place, float(scaler.skips))


def check_floor(run: Run) -> Iterable[Found]:
    """AMP-D05. A scale of 1 that the script chose is none that fell, and steps that are all skipped are AMP-D04."""
    for scaler in scaled_by(run):
        fell = 0 <= scaler.scale <= 1 and scaler.first_scale >= _FALLS * max(scaler.scale, 1e-30) and scaler.skips >= 4
        if fell and not _is_stuck(run, scaler):
            saw = f"{counted(scaler.skips, 'skip')} brought it from {size(scaler.first_scale)} to {size(scaler.scale)}"
            cause = first_cause(run)
            saw += f": {cause_in_words(cause)}" if cause is not None else ""
            yield Found("AMP-D05", scaler.kind, saw, scaler.place, float(scaler.skips))


def check_unchanging(run: Run) -> Iterable[Found]:
    """AMP-D06. A scale without overflows may stay for 2000 steps, so only overflows that repeat at one scale count, and
    scalers that are made anew for each step. A loop over trainings makes scalers that live for many steps."""
    young: dict[Place, list[Scaler]] = {}
    for scaler in scaled_by(run):
        if scaler.steps <= 1 and scaler.place.filename:
            young.setdefault(scaler.place, []).append(scaler)
        if scaler.skips >= 3 and scaler.updates and scaler.scale_min == scaler.scale_max:
            saw = f"it is {size(scaler.scale)} before and after {counted(scaler.skips, 'skip')}"
            yield Found("AMP-D06", scaler.kind, saw, scaler.place, float(scaler.skips))
    for place, made in young.items():
        if len(made) >= 5:
            saw = f"{len(made)} scalers made one step each, each from a scale of {size(made[-1].first_scale)}"
            yield Found("AMP-D06", made[-1].kind, saw, place, float(len(made)))


def check_early_clips(run: Run) -> Iterable[Found]:
    """AMP-D07. A limit of infinity only measures, at a scale of 1 nothing is wrong, and a limit that is a thousand
    times too large is one that the script multiplied by the scale itself. The script may have taken the scale away."""
    divided = {change.clip for change in run.changes if _divides(change)}
    for clip in run.clips:
        by_hand = clip.place in divided or (clip.scale >= 1024 and clip.limit >= clip.scale / 100)
        if clip.scaled and clip.scale != 1 and not math.isinf(clip.limit) and not by_hand:
            saw = f"{clip.scaled} of {counted(clip.calls, 'call')} clipped scaled gradients to {size(clip.limit)}"
            saw += f", at a scale of {size(clip.scale)}" if clip.scale else ""
            yield Found("AMP-D07", clip.kind, saw, clip.place, float(clip.scaled))
    yield from _clips_by_hand(run)


def _clips_by_hand(run: Run) -> Iterable[Found]:
    places = {clip.place for clip in run.clips}
    divided = {change.iteration for change in run.changes if _divides(change)}
    changes: dict[tuple[str, Place], list[Change]] = {}
    for change in run.changes:
        if change.place not in places and change.iteration not in divided:
            changes.setdefault((change.op, change.place), []).append(change)
    for same in changes.values():
        first = same[0]
        limit = first.limit or _limit_of(same)
        if limit and first.scale != 1 and not (first.scale >= 1024 and limit >= first.scale / 100):
            saw = f"{first.op} in the script limits scaled gradients to {size(limit)}"
            saw += f", at a scale of {size(first.scale)}"
            yield Found("AMP-D07", first.subject, saw, first.place, float(len(same)))


def _limit_of(changes: list[Change]) -> float:
    """Returns the norm that different factors give to gradients, 0 if it differs, too: a mean over ranks or tokens."""
    known = [change for change in changes if change.factor and 0 < change.norm < math.inf]
    factors = [change.factor for change in known]
    for norms in ([change.norm for change in known], [change.own for change in known]):
        if len(known) > 1 and max(factors) > 1.02 * min(factors) > 0 and max(norms) < 1.005 * min(norms):
            return norms[0]
    return 0.0


def _divides(change: Change) -> bool:
    """Returns True if the script takes the loss scale from gradients itself."""
    return change.scale != 1 and abs(change.factor * change.scale - 1) < 0.01


def check_schedulers(run: Run) -> Iterable[Found]:
    """AMP-D08. A scheduler that steps once an epoch may follow a skip by chance, and one that reads a metric counts no
    steps."""
    places = set()
    for scheduler in run.schedulers:
        if not 0 <= scheduler.optimizer < len(run.optimizers) or scheduler.kind == "ReduceLROnPlateau":
            continue
        tried = run.optimizers[scheduler.optimizer].tried
        if scheduler.after_skip and 2 * scheduler.steps >= tried and scheduler.place not in places:
            places.add(scheduler.place)
            saw = f"{scheduler.after_skip} of its {counted(scheduler.steps, 'step')} followed a skipped optimizer step"
            yield Found("AMP-D08", scheduler.kind, saw, scheduler.place, float(scheduler.after_skip))


def check_backward_in_autocast(run: Run) -> Iterable[Found]:
    """AMP-D09. A disabled autocast, or one inside a Function's backward, changes nothing."""
    for region in run.autocasts:
        if region.enabled and region.backwards_inside:
            of = counted(run.backwards, "backward")
            saw = f"{region.backwards_inside} of {of}, inside autocast to {region.dtype}"
            yield Found("AMP-D09", "autocast", saw, region.backward_place, float(region.backwards_inside))


def check_unscaled_twice(run: Run) -> Iterable[Found]:
    """AMP-D10."""
    for scaler in run.scalers:
        if scaler.unscaled_twice:
            saw = f"{counted(scaler.unscaled_twice, 'time')}, at a scale of {size(scaler.scale)}"
            yield Found("AMP-D10", scaler.kind, saw, scaler.unscaled_twice_place, float(scaler.unscaled_twice))
    change = next((change for change in run.changes if _divides(change) and change.divided), None)
    if change is not None:
        saw = f"{change.op} in the script takes the scale of {size(change.scale)} from gradients, and the scaler again"
        yield Found("AMP-D10", change.subject, saw, change.place, change.scale)


def check_updates(run: Run) -> Iterable[Found]:
    """AMP-D11. Several optimizers step before one update."""
    for scaler in scaled_by(run):
        if scaler.steps_without_update or (scaler.steps >= 2 and not scaler.updates):
            place = scaler.without_update_place if scaler.steps_without_update else scaler.place
            saw = f"{counted(scaler.steps, 'step')} and {counted(scaler.updates, 'update')}"
            missing = max(scaler.steps_without_update, scaler.steps - scaler.updates)
            yield Found("AMP-D11", scaler.kind, saw, place, float(missing))


def check_bypassed(run: Run) -> Iterable[Found]:
    """AMP-D12. At a scale of 1 there is nothing to remove, and a script may remove it itself."""
    by_hand = any(_divides(change) and not change.divided for change in run.changes)
    for scaler in scaled_by(run):
        if scaler.bypassed and scaler.scale_max != 1 and not by_hand:
            saw = f"{counted(scaler.bypassed, 'step')} at a scale of {size(scaler.scale)}"
            yield Found("AMP-D12", _stepped(run), saw, scaler.bypassed_place, float(scaler.bypassed))


def check_unscaled_backward(run: Run) -> Iterable[Found]:
    """AMP-D13. A second optimizer may train without the scaler, on a loss of its own: where one does, a loss that was
    not scaled is no mistake by itself."""
    for scaler in scaled_by(run):
        alone = sum(optimizer.tried for optimizer in run.optimizers) <= scaler.steps
        if scaler.steps and (not scaler.scales or (alone and scaler.unscaled_backwards)):
            saw = f"{counted(run.backwards, 'backward')}, {counted(scaler.scales, 'call')} of scaler.scale"
            place = scaler.unscaled_backward_place if scaler.unscaled_backwards else scaler.place
            yield Found("AMP-D13", scaler.kind, saw, place, float(scaler.unscaled_backwards))


def _stepped(run: Run) -> str:
    optimizer: Optimizer | None = next(iter(run.optimizers), None)
    return optimizer.kind if optimizer is not None else ""
