# SPDX-License-Identifier: Apache-2.0
"""Events of loss scalers, and skipped steps. Each function gets the recorder."""

from __future__ import annotations

from typing import Any

import torch

from . import watch
from .later import is_here
from .places import script_place
from .seen import Scaled, Seen

_BY_HAND = 64.0  # smallest factor of a loss that is a loss scale, not the weight of one loss beside others


def scaled_of(recorder: Any, scaler: Any) -> Scaled:
    known = recorder.scaled.get(id(scaler))
    if known is None or known.ref() is not scaler:
        record = watch.Scaler(type(scaler).__name__, bool(scaler.is_enabled()))
        record.growth_interval = int(getattr(scaler, "_growth_interval", 0))
        record.first_scale = record.scale = record.scale_min = record.scale_max = _scale_of(scaler)
        known = recorder.scaled[id(scaler)] = Scaled(scaler, record)
        recorder.run.scalers.append(record)
    return known


def on_scale(recorder: Any, scaler: Any, outputs: Any) -> None:
    """Runs after scale()."""
    scaled = scaled_of(recorder, scaler)
    scaled.record.scales += 1
    if scaled.record.enabled:
        scaled.pending += 1 if isinstance(outputs, torch.Tensor) else len(outputs)
        if isinstance(outputs, torch.Tensor):
            scaled.record.device = outputs.device.type
            recorder._loss(outputs)


def on_unscale(recorder: Any, scaler: Any, optimizer: Any, failed: bool) -> None:
    """Runs after unscale_(). failed: it raised."""
    scaled = scaled_of(recorder, scaler)
    if not scaled.record.enabled:
        return
    if id(optimizer) in scaled.unscaled and failed:
        scaled.record.unscaled_twice += 1
        scaled.record.unscaled_twice_place = script_place()
    scaled.record.unscales += not scaled.stepping
    scaled.unscaled.add(id(optimizer))


def on_scaler_step(recorder: Any, scaler: Any, optimizer: Any) -> int:
    """Runs before step(). Returns the number of steps that the optimizer has tried until now."""
    scaled = scaled_of(recorder, scaler)
    seen = recorder.seen_of(optimizer) if hasattr(optimizer, "param_groups") else None
    record = scaled.record
    if not record.steps:
        record.place = script_place()
    if id(optimizer) in scaled.stepped and record.enabled:
        record.steps_without_update += 1
        record.without_update_place = script_place()
    record.steps += 1
    scaled.stepping = record.enabled
    if seen is not None:
        seen.by_scaler = seen.by_scaler or record.enabled
    return seen.record.tried if seen is not None else 0


def on_scaler_stepped(recorder: Any, scaler: Any, optimizer: Any, tried: int, failed: bool) -> None:
    """Runs after step()."""
    scaled = scaled_of(recorder, scaler)
    scaled.stepping = False
    scaled.stepped.add(id(optimizer))
    if not hasattr(optimizer, "param_groups") or failed or not scaled.record.enabled:
        return
    seen = recorder.seen_of(optimizer)
    if seen.record.tried == tried:
        seen.record.tried += 1
        seen.skipped = True
        skipped(recorder, seen, scaled)
        recorder._event(seen, "skip")
        recorder._tried(seen)
    elif getattr(optimizer, "found_inf", None) is None and not getattr(
        optimizer, "_step_supports_amp_scaling", False
    ):
        scaled.record.skips_in_a_row = 0


def skip_on_device(recorder: Any, seen: Seen, found: Any) -> None:
    """A step that decides on the device whether it is one."""
    iteration = recorder.run.iterations
    seen.decides = found
    open_scalers = [scaled for scaled in recorder.scaled.values() if scaled.stepping]

    def then(value: float) -> None:
        if value:
            seen.record.steps -= 1
            skipped(recorder, seen, *open_scalers, iteration=iteration)
        else:
            for scaled in open_scalers:
                scaled.record.skips_in_a_row = 0

    recorder.later.put(found, then)


def skipped(recorder: Any, seen: Seen, *scalers: Scaled, iteration: int = 0) -> None:
    iteration = iteration or recorder.run.iterations
    seen.record.skipped += 1
    for scaled in scalers:
        record = scaled.record
        record.skips += 1
        record.skips_in_a_row += 1
        record.first_skip = record.first_skip or iteration
        record.last_skip = iteration
        if len(record.skip_iterations) < 100:
            record.skip_iterations.append(iteration)
    recorder.ops.wanted("skip", iteration)


def on_update(recorder: Any, scaler: Any) -> None:
    """Runs after update()."""
    scaled = scaled_of(recorder, scaler)
    record = scaled.record
    record.updates += 1
    scaled.open, scaled.pending = False, 0
    scaled.unscaled.clear()
    scaled.stepped.clear()
    present = getattr(scaler, "_scale", None)
    if record.enabled and isinstance(present, torch.Tensor):
        iteration = recorder.run.iterations
        recorder.later.put(present, lambda value: _note_scale(record, iteration, value))


def check_bypass(recorder: Any, optimizer: Any, seen: Seen) -> None:
    for scaled in recorder.scaled.values():
        if scaled.open and not scaled.stepping and scaled.record.enabled and id(optimizer) not in scaled.unscaled:
            seen.bypassed += 1
            seen.bypassed_place = script_place()


def on_hands_end(recorder: Any, optimizer: Any) -> None:
    """Runs before a scaler or an optimizer takes the gradients over from the script."""
    scaled = [scaled for scaled in recorder.scaled.values() if scaled.open and id(optimizer) not in scaled.unscaled]
    if scaled and recorder.ops.mode is not None and hasattr(optimizer, "param_groups"):
        with torch.no_grad():
            recorder.ops.hands.end(optimizer, any(each.taking or each.stepping for each in scaled))


def on_taking(recorder: Any, scaler: Any, optimizer: Any) -> None:
    """Runs before unscale_()."""
    if recorder.ops.mode is not None:
        scaled = scaled_of(recorder, scaler)
        scaled.taking = True
        on_hands_end(recorder, optimizer)
        scaled.taking = False
        recorder.ops.hands.scale = 1.0  # its own division


def scale_on(recorder: Any) -> float:
    """Returns the loss scale of the gradients in backward."""
    scales = [scaled.record.scale for scaled in recorder.scaled.values() if scaled.open and scaled.record.enabled]
    return max(scales, default=1.0)


def is_multiplied(loss: Any) -> bool:
    """Returns True for a loss that the script multiplied by a number of 64 or more, or by one on a device."""
    node = getattr(loss, "grad_fn", None)
    if node is None or node.name() != "MulBackward0":
        return False
    factors = [getattr(node, name, None) for name in ("_saved_self", "_saved_other")]
    known = [each for each in factors if isinstance(each, torch.Tensor) and each.numel() == 1]
    with torch._C._DisableTorchDispatch():  # in an iteration that is watched
        return any(_is_large(each) for each in known if not each.requires_grad)


def _is_large(factor: Any) -> bool:
    return not is_here(factor.device) or abs(float(factor)) >= _BY_HAND


def _scale_of(scaler: Any) -> float:
    """Returns the scale where that needs no GPU, else the initial one."""
    present = getattr(scaler, "_scale", None)
    if isinstance(present, torch.Tensor) and is_here(present.device):
        return float(present)
    return float(getattr(scaler, "_init_scale", 0.0) or 0.0)


def _note_scale(record: watch.Scaler, iteration: int, value: float) -> None:
    if not record.history or record.history[-1][1] != value:
        record.history.append((iteration, value))
        del record.history[:-400]
    record.scale = value
    record.scale_min = min(record.scale_min, value) if record.scale_min else value
    record.scale_max = max(record.scale_max, value)
