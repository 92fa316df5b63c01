# SPDX-License-Identifier: Apache-2.0
"""The loss scale as arrays. The rule is the library's (docs/guide/loss-scaling.md), bit for bit, without evaluation:
each branch is a `where`, and the result of a bracket is an array."""
from __future__ import annotations

from typing import Any

import mlx.core as mx

from .. import ArgumentError

State = dict[str, mx.array]

_LARGEST = 3.4028234663852886e38
_DYNAMIC = -1.0
# The modes with Apex's rule. torch's and jmp's keep a scale that would grow to infinity.
_STANDS = {"apex": False, "megatron": False, "torch": True, "jmp": True}


def _number(name: str, value: float) -> float:
    """Checks a factor. MLX multiplies in FP32, the library in double: FP32 factors give equal results."""
    nearest = mx.array(value, mx.float32).item()
    if nearest != value:
        raise ArgumentError(f"{name} is {value!r}, which FP32 does not hold: the nearest that it does is {nearest!r}")
    return value


class Scaler:
    """A rule. Its State belongs to the caller and to checkpoints."""

    def __init__(self, settings: dict[str, Any]) -> None:
        mode = settings["scaler"]
        if mode not in _STANDS:
            raise ArgumentError(f"scaler={mode!r} has no rule for MLX: it is one of {', '.join(_STANDS)}")
        self.dynamic = settings["loss_scale"] == _DYNAMIC
        self.first = settings["init_scale"] if self.dynamic else settings["loss_scale"]
        self.stands = _STANDS[mode]
        self.min, self.max = settings["min_scale"], settings["max_scale"]
        self.growth = _number("growth", settings["growth"])
        self.backoff = _number("backoff", settings["backoff"] or 0.0)
        self.window, self.hysteresis = settings["window"], settings["hysteresis"]
        self.restores = bool(settings["consecutive_hysteresis"])

    @property
    def idle(self) -> bool:
        """Returns True if the scale is always 1: nothing is scaled, checked or skipped."""
        return not self.dynamic and self.first == 1.0

    def state(self) -> State:
        """Returns the initial state."""
        return {
            "scale": mx.array(self.first, mx.float32),
            "unskipped": mx.array(0, mx.uint32),
            "hysteresis_left": mx.array(self.hysteresis, mx.uint32),
            "skips_in_row": mx.array(0, mx.uint32),
            "skipped": mx.array(0, mx.uint32),
            "brackets": mx.array(0, mx.uint32),
            "first_nonfinite": mx.array(-1, mx.int32),
        }

    def update(self, state: State, finite: mx.array, first_nonfinite: mx.array) -> None:
        """Updates the state after a bracket. first_nonfinite: index of the first gradient that is not finite."""
        one, none = mx.array(1, mx.uint32), mx.array(0, mx.uint32)
        state["brackets"] = state["brackets"] + one
        state["skipped"] = state["skipped"] + mx.where(finite, none, one)
        state["skips_in_row"] = mx.where(finite, none, state["skips_in_row"] + one)
        state["first_nonfinite"] = mx.where(finite, state["first_nonfinite"], first_nonfinite)
        unskipped = mx.where(finite, state["unskipped"] + one, none)
        if self.dynamic:
            unskipped = self._move(state, finite, unskipped)
        state["unskipped"] = unskipped

    def _move(self, state: State, finite: mx.array, unskipped: mx.array) -> mx.array:
        scale, left = state["scale"], state["hysteresis_left"]
        whole = unskipped >= self.window  # False after an overflow, when unskipped is 0
        spent = left <= 1
        state["scale"] = mx.where(
            finite, mx.where(whole, self._grown(scale), scale), mx.where(spent, self._backed_off(scale), scale)
        )
        full = mx.array(self.hysteresis, mx.uint32)
        clean = full if self.restores else mx.where(whole, full, left)
        state["hysteresis_left"] = mx.where(finite, clean, mx.where(spent, left, left - mx.array(1, mx.uint32)))
        return mx.where(whole, mx.array(0, mx.uint32), unskipped)

    def _grown(self, scale: mx.array) -> mx.array:
        grown = scale * self.growth
        bounded = mx.clip(grown, self.min, self.max)
        return mx.where(mx.isinf(grown), scale, bounded) if self.stands else bounded

    def _backed_off(self, scale: mx.array) -> mx.array:
        return mx.clip(scale * self.backoff if self.backoff else scale / self.growth, self.min, self.max)


def unscale(state: State, grads: list[mx.array]) -> tuple[list[mx.array], mx.array, mx.array]:
    """Returns the unscaled gradients in FP32, all NaN if one is not finite, whether they are finite, and the first that
    is not.

    The NaN is the decision to skip. It follows the gradients through sums, clipping, averages over ranks and compiled
    functions, and the optimizer reads only one element.
    """
    scale = state["scale"]
    wide = [grad.astype(mx.float32) for grad in grads]
    limit = _LARGEST * mx.minimum(scale, 1.0)  # a scale below 1 can make finite values infinite
    flags = mx.stack([(mx.abs(grad) <= limit).all() for grad in wide])  # no NaN is below a limit
    finite = flags.all()
    factor = mx.where(finite, 1.0 / scale, float("nan"))
    return [grad * factor for grad in wide], finite, mx.argmin(flags.astype(mx.uint8)).astype(mx.int32)


def is_step(grads: list[mx.array]) -> mx.array:
    """Returns whether to use these gradients. In gradients that unscale refused every element is NaN."""
    firsts = [grad.reshape(-1)[:1].astype(mx.float32) for grad in grads[:1]]
    return mx.isfinite(firsts[0]).all()
