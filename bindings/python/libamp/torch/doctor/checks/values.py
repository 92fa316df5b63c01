# SPDX-License-Identifier: Apache-2.0
"""Findings about numbers: the origin of infinity and NaN, constants that fp16 has not, and ops in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...._words import counted
from ..watch import Cause, Found, Op, Param, Run
from .scaling import SEARCH, cause_in_words
from .words import HALF_LEAST, HALF_MAX, LOW, others, scaled_by, share, size, where

_ADDS = ("add", "sub", "rsub", "clamp", "clamp_min", "maximum", "max", "where", "masked_fill", "fill", "full")
# Ops that torch's autocast runs in FP32 on a GPU, and not on each device, with the reason in a word.
_OVERFLOWS = ("exp", "expm1", "exp2", "pow", "square", "cosh", "sinh", "prod", "sum", "norm", "linalg_vector_norm",
              "cumprod", "var", "logsumexp", "mul", "reciprocal", "rsqrt")
_GROWS = ("cumsum", "cumprod", "logcumsumexp")  # a sum of all has the same gradient in any type
RANGED = frozenset(_OVERFLOWS + _GROWS)  # ops that are judged by their values
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
           "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
_EXACT = ("sign", "neg", "abs", "relu", "clamp", "clamp_min", "clamp_max", "round", "floor", "ceil", "trunc", "where",
          "clone", "copy", "_to_copy", "masked_fill", "zeros_like", "ones_like", "empty_like", "new_zeros", "flip",
          "index_select", "gather", "cat", "stack")
_NEAR = 4.0  # within this factor of the largest number of fp16 an op overflows with another batch
_COUNTS = {"float16": 2048.0, "bfloat16": 256.0}  # whole numbers beyond are not all there


# ---- the origin of infinity and NaN ----


def _counts(run: Run, cause: Cause) -> bool:
    """Returns True if a cause is no search for a scale: a gradient that overflows in fp16 is what a scaler is for, and
    AMP-D04 tells if it never ends."""
    if cause.kind == "unknown":
        return False
    if cause.kind != "gradient" or not scaled_by(run):
        return True
    return cause.output_dtype == "float32" and cause.input_largest < 1e18  # a division by 0, not an overflow


def _origins(run: Run, kinds: tuple[str, ...]) -> Iterable[tuple[Cause, int]]:
    """Returns the causes of these kinds, each once, with the number of its iterations."""
    counted: dict[tuple[str, str, str, int], list[Cause]] = {}
    for cause in run.causes:
        if cause.kind in kinds and _counts(run, cause):
            key = cause.subject, cause.module, cause.place.filename, cause.place.lineno
            counted.setdefault(key, []).append(cause)
    for causes in counted.values():
        yield causes[0], len(causes)


def _where(cause: Cause, count: int) -> str:
    more = f", and in {counted(count - 1, 'later iteration')}" if count > 1 else ""
    return f"in iteration {cause.iteration}{more}"


def _amount(cause: Cause) -> str:
    if not cause.count:
        return f"it has {cause.value}"
    return f"{counted(cause.count, 'number')} of it ({share(cause.share)}), {cause.value} among them,"


def check_batches(run: Run) -> Iterable[Found]:
    """AMP-D14."""
    for cause, count in _origins(run, ("batch",)):
        saw = f"{_amount(cause)} {_where(cause, count)}"
        yield Found("AMP-D14", cause.subject, saw, where(run, cause.place), float(count))


def check_weights(run: Run) -> Iterable[Found]:
    """AMP-D15. The first weight is the origin: after one step they all have it. Where nothing was watched, the last
    samples tell. Where the optimizer's epsilon is 0 a step on a finite loss may have divided by
    0: AMP-D18 stands before."""
    divided = {param.name for index in _without_epsilon(run) for param in _in_half(run, index)}
    for cause, count in list(_origins(run, ("weight",)))[:1]:
        saw = f"{_amount(cause)} {_where(cause, count)}"
        if 0 < run.first_nonfinite_loss < cause.iteration and cause.subject not in divided:
            saw += f", after a step on the loss of iteration {run.first_nonfinite_loss}, which was not finite"
        yield Found("AMP-D15", cause.subject, saw, where(run, cause.place), float(count))
        return
    bad = [param for param in run.params if param.weight_nonfinite and param.trained]
    if bad and not any(_counts(run, cause) for cause in run.causes):
        saw = f"it is not finite at the end, after {counted(run.iterations, 'iteration')}"
        yield Found("AMP-D15", bad[0].name, saw + others([param.name for param in bad]), where(run), float(len(bad)))


def check_ops(run: Run) -> Iterable[Found]:
    """AMP-D16. After the first, only other lines count: what follows a NaN is no origin."""
    for cause, count in _origins(run, ("op", "gradient")):
        saw = f"{cause_in_words(cause)}, {_where(cause, count)}"
        yield Found("AMP-D16", cause.module or cause.subject, saw, where(run, cause.place), float(count))


def check_losses(run: Run) -> Iterable[Found]:
    """AMP-D26. A loss with a known cause has its finding. A loss that has gradients in it (a gradient penalty)
    overflows while a scaler searches for its scale, and recovers."""
    last = run.losses[-1].value if run.losses else 0.0
    searches = bool(scaled_by(run)) and math.isfinite(last) and run.nonfinite_losses < SEARCH
    if run.nonfinite_losses and not searches and not any(_counts(run, cause) for cause in run.causes):
        first = f"from iteration {run.first_nonfinite_loss} on"
        saw = f"{run.nonfinite_losses} of {counted(run.backwards, 'backward')}, {first}"
        yield Found("AMP-D26", "the loss", saw, where(run), float(run.nonfinite_losses))


# ---- constants ----


def _is_half(op: Op) -> bool:
    return op.output == "float16" and not op.backward


def check_large_constants(run: Run) -> Iterable[Found]:
    """AMP-D17. -infinity by name is meant, and is a constant that fp16 has."""
    for op in run.ops:
        large = [each for each in op.scalars if HALF_MAX < abs(each) < float("inf")]
        if _is_half(op) and large:
            saw = f"{op.name} of float16 with {size(large[0])}, in {counted(op.calls, 'call')}"
            yield Found("AMP-D17", op.module or op.name, saw, op.place, abs(large[0]))


def check_epsilons(run: Run) -> Iterable[Found]:
    """AMP-D18. Normalizations compute in FP32 inside, so only ops that add or bound are asked."""
    for op in run.ops:
        small = [each for each in op.scalars if 0 < abs(each) < HALF_LEAST]
        if _is_half(op) and small and op.name in _ADDS:
            saw = f"{op.name} of float16 with {size(small[0])}, in {counted(op.calls, 'call')}"
            yield Found("AMP-D18", op.module or op.name, saw, op.place, 1 / abs(small[0]))


def _in_half(run: Run, index: int) -> list[Param]:
    return [param for param in run.params if param.optimizer == index and param.dtype == "float16"]


def _without_epsilon(run: Run) -> list[int]:
    """Returns the optimizers whose epsilon is 0 in the type of their state, by index."""
    return [
        index
        for index, optimizer in enumerate(run.optimizers)
        if 0 < optimizer.eps < HALF_LEAST
        and not optimizer.masters
        and not optimizer.fused
        and any("float16" in param.state_dtypes.values() for param in _in_half(run, index))
    ]


def check_epsilons_of_optimizers(run: Run) -> Iterable[Found]:
    """AMP-D18: a division by 0 where a gradient is 0."""
    places = set()
    for index in _without_epsilon(run):
        optimizer, half = run.optimizers[index], _in_half(run, index)
        if (optimizer.kind, optimizer.place) not in places:
            places.add((optimizer.kind, optimizer.place))
            saw = f"eps={size(optimizer.eps)} of {optimizer.kind}, with {counted(len(half), 'parameter')} in float16"
            bad = [param.name for param in half if param.weight_nonfinite]
            if bad:
                saw += f". {bad[0]} became infinite or NaN{others(bad)}"
            yield Found("AMP-D18", optimizer.kind, saw, optimizer.place, 1 / optimizer.eps)


# ---- ops in 16 bits ----


def _risk(op: Op) -> str:
    """Returns the harm that an op in 16 bits does, "" for none, from its values, or its sizes where those were not
    read. exp, softmax and means in bf16 keep the range of FP32, and torch sums in FP32 inside, so a type alone is no
    harm. A constant near 65504 was chosen for fp16."""
    if op.output not in LOW or op.nonfinite:
        return ""
    chosen = any(abs(each) >= HALF_MAX / _NEAR for each in op.scalars)
    if op.output == "float16" and op.name in _OVERFLOWS and op.largest >= HALF_MAX / _NEAR and not chosen:
        return f"its results reach {size(op.largest)}, and float16 ends at 65504"
    if op.name in _GROWS and op.largest > _COUNTS[op.output]:
        return f"it reaches {size(op.largest)}, and {op.output} has whole numbers up to {size(_COUNTS[op.output])}"
    terms = max((extent for shape in op.shapes[:1] for extent in shape), default=0)
    if op.name == "cumsum" and not op.largest and terms > _COUNTS[op.output]:
        return f"it counts up to {terms}, and {op.output} has whole numbers up to {size(_COUNTS[op.output])}"
    if op.name in _LOSSES:
        return f"the loss is {op.output}, {8 if op.output == 'bfloat16' else 11} bits"
    return ""


def check_unprotected(run: Run) -> Iterable[Found]:
    """AMP-D19. In a session of libamp without autocast the level says which ops run in 16 bits."""
    seen = set()
    for op in run.ops:
        harm = "" if op.backward or op.function or (run.libamp and not op.autocast) else _risk(op)
        if harm and (op.name, op.module, op.place) not in seen:
            seen.add((op.name, op.module, op.place))
            under = f"under autocast to {op.autocast}" if op.autocast else "without autocast"
            saw = f"{op.name} gives {op.output} {under}: {harm}"
            yield Found("AMP-D19", op.module or op.name, saw, op.place, op.largest or float(op.calls))


def check_functions(run: Run) -> Iterable[Found]:
    """AMP-D20. Outside autocast types are the script's own choice. A Function of ops that choose among their inputs, as
    a straight-through estimator, rounds nothing in any type."""
    seen = set()
    for op in run.ops:
        if op.name in _EXACT:
            continue
        low = [dtype for dtype in op.inputs if dtype in LOW]
        if op.function and not op.protected and op.autocast and low and not op.backward and op.function not in seen:
            seen.add(op.function)
            saw = f"{op.name} in its forward got {low[0]} in {counted(op.calls, 'call')}"
            yield Found("AMP-D20", op.function, saw, op.place, float(op.calls))
