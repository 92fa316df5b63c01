# SPDX-License-Identifier: Apache-2.0
"""What a record is too short or too narrow to tell. "No finding" is a promise about the rest."""

from __future__ import annotations

from collections.abc import Iterator

from ...._words import counted
from ..watch import Param, Run
from .gradients import LOOKS
from .weights import STEPS, is_warming_up
from .words import LOW, others, size, uses_half


def unjudged(run: Run) -> list[str]:
    """Returns the findings that this record could not have, each as a sentence with its reason."""
    return [*_weights(run), *_gradients(run), *_ops(run), *([early_steps(run)] if run.compiled_before else [])]


def early_steps(run: Run) -> str:
    """Returns the sentence about steps that the taps did not see."""
    return (
        f"steps of {', '.join(run.compiled_before)}: they ran in a function that torch.compile compiled before the "
        "doctor began. Begin it first, or call torch._dynamo.reset() before it"
    )


def _weights(run: Run) -> Iterator[str]:
    low = [param for param in run.params if param.trained and param.dtype in LOW and param.optimizer >= 0]
    steps = max((run.optimizers[param.optimizer].steps for param in low), default=0)
    if low and steps < STEPS:
        yield f"AMP-D01, updates of 16-bit weights: {counted(steps, 'step')} ran, and it takes {STEPS}"
    elif any(is_warming_up(param) for param in low):
        rate = size(max(param.lr_max for param in low))
        yield f"AMP-D01, updates of 16-bit weights: the learning rate was in its warm-up to the end, at {rate}"
    unseen = _without_gradients(run)
    if unseen and any(param.dtype in LOW for param in unseen):
        kind = run.optimizers[unseen[0].optimizer].kind
        yield f"AMP-D01, updates of 16-bit weights: the compiled function that steps {kind} cleared the gradients"
    sparse = [param.name for param in run.params if param.has_grad and not param.looks]
    if sparse:
        yield f"gradients of {sparse[0]}, which are sparse or in parts of another shape{others(sparse)}"


def _without_gradients(run: Run) -> list[Param]:
    """Returns the parameters of optimizers that step in compiled functions, if none of them had a gradient behind its
    calls."""
    outside = {index for index, optimizer in enumerate(run.optimizers) if optimizer.outside}
    params = [param for param in run.params if param.optimizer in outside]
    return [] if any(param.looks for param in params) else params


def _gradients(run: Run) -> Iterator[str]:
    looks = max((param.looks for param in run.params if param.trained), default=0)
    if uses_half(run) and 0 < looks < LOOKS:
        yield f"AMP-D02, underflow in fp16: gradients were looked at in {counted(looks, 'step')}, and it takes {LOOKS}"
    if uses_half(run) and _without_gradients(run):
        yield "AMP-D02 and AMP-D03, underflow in fp16: a compiled function cleared the gradients"
    if "deepspeed" in run.frameworks:
        yield "AMP-D03 to AMP-D13, the loss scale: it is DeepSpeed's own"


def _ops(run: Run) -> Iterator[str]:
    if run.iterations and not run.watched and not run.compiled:
        yield "AMP-D17 to AMP-D20, constants and types of ops: no iteration could be watched op by op"
