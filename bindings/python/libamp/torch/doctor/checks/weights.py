# SPDX-License-Identifier: Apache-2.0
"""Findings about weights: updates, averages, states, and parameters that nothing steps."""

from __future__ import annotations

from collections.abc import Iterable

from ...._words import counted
from ..watch import NOWHERE, Found, Optimizer, Param, Run
from .words import LOW, others, share, size, where

# A step that moves nothing is no finding before so many: a warm-up begins at a rate of 0, and Kahan summation moves a
# 16-bit weight once its rest has grown.
STEPS = 10
_LOOKS = 5  # of these steps were looked at: the first ones are, later ones as time allows
# Large weights of a good 16-bit training stand still for some steps. A quarter of all that never moved do not.
_LOST = 0.25
_MOVES, _ARRIVES, _SURPLUS = 10, 0.05, 4  # number and shares of small updates that move a weight nevertheless
_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "exp_avg_sq_row", "exp_avg_sq_col", "sum", "exp_inf", "v",
            "nu", "second_moment")
_KAHAN = ("kahan", "comp", "shift", "master", "fp32", "residual", "lower", "trunc")  # in names of states


def _optimizer(run: Run, param: Param) -> Optimizer | None:
    return run.optimizers[param.optimizer] if 0 <= param.optimizer < len(run.optimizers) else None


def _carries(param: Param) -> bool:
    """Returns True if the optimizer stores what rounding takes from the weight: a master, or a sum of rests."""
    return any(word in name.lower() for name in param.state_dtypes for word in _KAHAN)


def _arrive(optimizer: Optimizer) -> bool:
    """Returns True if the optimizer moves weights by more than rounding to nearest makes of its updates, and so moves
    them in the mean: it rounds at random or adds up the rests."""
    (moves, by_gradient), (updates, expected) = optimizer.small_moves, optimizer.small_updates
    if moves >= _MOVES and moves >= _ARRIVES * updates:
        return True
    # far more moves than expected are those of another rule
    return by_gradient >= _MOVES and _ARRIVES * expected <= by_gradient <= _SURPLUS * expected


def _lost_in_fp32_too(param: Param, optimizer: Optimizer) -> bool:
    """Returns True for plain gradient descent with gradients so small that FP32 would not move either."""
    if optimizer.kind != "SGD":
        return False
    return param.lr_max * param.grad_max * max(1, optimizer.steps) < 2.0**-25 * param.weight_max


def is_warming_up(param: Param) -> bool:
    """Returns True if the learning rate was still rising at the end. Weights that stand may move at the full rate."""
    return param.lr >= param.lr_max > 2 * param.lr_first


def _never_moved(run: Run) -> Iterable[tuple[float, Param]]:
    for param in run.params:
        optimizer = _optimizer(run, param)
        if optimizer is None or param.dtype not in LOW or optimizer.masters or _carries(param) or _arrive(optimizer):
            continue
        if optimizer.tried - optimizer.skipped < STEPS or param.grad_looks < _LOOKS or not param.grad_seen:
            continue
        if not param.lr_max or is_warming_up(param) or _lost_in_fp32_too(param, optimizer):
            continue
        lost = (param.grad_seen - param.moved_of_seen) / param.grad_seen
        if lost >= _LOST:
            yield lost, param


def check_lost_updates(run: Run) -> Iterable[Found]:
    """AMP-D01. Judged by element: those that never had a gradient (rows of an embedding, dead units) do not count, and
    neither do groups whose learning rate is 0 or still in warm-up."""
    found = sorted(_never_moved(run), key=lambda each: -each[0])
    if found:
        lost, worst = found[0]
        optimizer = run.optimizers[worst.optimizer]
        saw = (
            f"{share(lost)} of its {worst.dtype} elements with gradients never moved in "
            f"{counted(optimizer.tried - optimizer.skipped, 'step')}, at learning rates up to {size(worst.lr_max)}"
        )
        yield Found("AMP-D01", worst.name, saw + _others(run, [param for _, param in found]), optimizer.place, lost)


def _others(run: Run, params: list[Param]) -> str:
    """Returns the rest of a list whose first parameter is the subject, and the number of optimizers."""
    steppers = {param.optimizer: run.optimizers[param.optimizer].kind for param in params}
    kinds = ", ".join(dict.fromkeys(steppers.values()))
    text = f", in {len(steppers)} optimizers ({kinds})" if len(steppers) > 1 else ""
    return text + others([param.name for param in params])


def check_averages(run: Run) -> Iterable[Found]:
    """AMP-D21. One or two updates of a healthy average may round to nothing, so there must be several. Elements that
    the model itself did not move do not count."""
    for average in run.averages:
        if average.dtype not in LOW or average.updates < STEPS or not average.followed:
            continue
        stood = 1 - average.moved / average.followed
        if stood >= 0.5:
            # of a copy that the script itself updates the writes are counted: mul_ and add_ are two
            updates = counted(average.updates, "write" if average.place == NOWHERE else "update")
            saw = (
                f"{share(stood)} of the elements of this {average.dtype} average never moved in {updates}, while the "
                f"model's did; most of all {average.worst}"
            )
            yield Found("AMP-D21", average.kind, saw, where(run, average.place), stood)


def check_states(run: Run) -> Iterable[Found]:
    """AMP-D22. First moments are left out: they change by a tenth in a step, which 8 bits hold. Second moments in bf16
    with a beta2 below 0.996 change by more than half of a last bit."""
    found: list[tuple[str, Param]] = []
    for param in run.params:
        optimizer = _optimizer(run, param)
        for name, dtype in param.state_dtypes.items():
            if name not in _SQUARES or dtype not in LOW or optimizer is None:
                continue
            if dtype == "float16" or not 0 < optimizer.beta2 < 1 - 2.0**-8:
                found.append((name, param))
                break
    if found:
        name, param = found[0]
        optimizer = run.optimizers[param.optimizer]
        saw = f"{name} of {optimizer.kind} is {param.state_dtypes[name]} in {counted(len(found), 'parameter')}"
        saw += _others(run, [param for _, param in found])
        yield Found("AMP-D22", param.name, saw, optimizer.place, len(found))


def check_untrained(run: Run) -> Iterable[Found]:
    """AMP-D23. A model of which nothing is trained is a tool (a perceptual loss, a style transfer), and a parameter
    that moves has an update of the script's own: neither counts. One look may be from before its optimizer is made."""
    trained = {param.model for param in run.params if param.trained and param.optimizer >= 0}
    found = [
        param
        for param in run.params
        if param.optimizer < 0
        and param.requires_grad
        and param.has_grad
        and param.grad_looks >= 3
        and not param.moved
        and param.model in trained - {-1}
    ]
    if found:
        elements = sum(_elements(param) for param in found)
        names = [param.name for param in found]
        of = f"{counted(len(found), 'parameter')} with {counted(elements, 'element')}"
        saw = f"{of} got gradients and no step" + others(names)
        yield Found("AMP-D23", found[0].name, saw, where(run), len(found))


def _elements(param: Param) -> int:
    count = 1
    for extent in param.shape:
        count *= extent
    return count
