# SPDX-License-Identifier: Apache-2.0
"""The checks: one function for each finding, from the record of a run to what it found. Their list is CHECKS, most
serious first. A check names one subject and counts the others, so a model with a thousand layers has one finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..watch import Found, Run
from . import gradients, layers, scaling, values, weights
from .unjudged import early_steps, unjudged

CHECKS: list[Callable[[Run], Iterable[Found]]] = [
    scaling.check_all_skipped,
    values.check_batches,
    values.check_epsilons_of_optimizers,
    values.check_weights,
    values.check_ops,
    values.check_losses,
    weights.check_lost_updates,
    gradients.check_no_scaler,
    scaling.check_bypassed,
    scaling.check_unscaled_backward,
    scaling.check_unscaled_twice,
    scaling.check_updates,
    scaling.check_early_clips,
    scaling.check_floor,
    scaling.check_unchanging,
    gradients.check_underflow,
    weights.check_averages,
    weights.check_untrained,
    values.check_large_constants,
    values.check_epsilons,
    values.check_functions,
    values.check_unprotected,
    layers.check_buffers,
    layers.check_batch_norms,
    weights.check_states,
    scaling.check_schedulers,
    scaling.check_backward_in_autocast,
    layers.check_tiles,
    layers.check_fp32_products,
]

__all__ = ["CHECKS", "early_steps", "unjudged"]
