# SPDX-License-Identifier: Apache-2.0
"""The gate of products when a training begins: its mode, and gate="measure", which times a product of each shape class
in 16 bits and in FP32, once.

Rank 0 measures. The other ranks read its answers from the store of the process group. No collective is involved, so
ranks may come at any time, and if rank 0 never measures the others raise an error after WAIT.
"""
from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import product_rules as rules
from .properties import torch_type
from .session import Session

WAIT = datetime.timedelta(minutes=5)
_ROUNDS = 5
_LEAST_TIME = 2_000_000  # of a round, in nanoseconds
_HOPELESS = 0.5  # two classes in succession at this speed of FP32: larger ones are not timed


def begin(current: Session, models: Iterable[torch.nn.Module], mode: str | None) -> None:
    """Puts the gate in force for a session. mode: of product_rules.MODES, None for the default."""
    low = getattr(torch, current.low_type)
    casts = current.resolved["patch_ops"] or torch_type(current.resolved["cast_model_type"]) is low
    devices = {param.device.type for model in models for param in model.parameters()}
    current.undo.append(rules.use(mode, current))
    if casts and (not devices or "cpu" in devices):
        current.products = low
        if current.gate == "measure":
            agree(low, current.process_group)


# ---- a measurement ----


def _linear(size: int, fill: Callable[..., torch.Tensor]) -> tuple[str, Any, tuple[torch.Tensor, ...], dict[str, Any]]:
    return "linear", torch.nn.functional.linear, (fill(size, size), fill(size, size)), {}


def _conv(size: int, fill: Callable[..., torch.Tensor]) -> tuple[str, Any, tuple[torch.Tensor, ...], dict[str, Any]]:
    channels = max(1, round(size / 2.7))  # the edge of a 3x3 convolution of many pixels
    arguments = fill(8, channels, 16, 16), fill(channels, channels, 3, 3)
    return "conv2d", torch.nn.functional.conv2d, arguments, {"padding": 1}


def _attention(
    size: int, fill: Callable[..., torch.Tensor]
) -> tuple[str, Any, tuple[torch.Tensor, ...], dict[str, Any]]:
    head = 64
    length = round(2.0 / (3.0 / size - 1.0 / head))
    function = torch.nn.functional.scaled_dot_product_attention
    return "scaled_dot_product_attention", function, tuple(fill(2, 4, length, head) for _ in range(3)), {}


_MAKE = {"matmul": _linear, "conv": _conv, "attention": _attention}


def _pieces(kind: str, size: int, low: torch.dtype) -> tuple[Callable[[], Any], Callable[[], Any]] | None:
    """Returns two functions that compute a product and its gradients: in 16 bits, and in FP32 with a 16-bit result.
    Activations are 16-bit, weights FP32. None for a product that is too small to leave torch's kernels."""
    from . import products

    generator = torch.Generator().manual_seed(0)  # the script's random numbers stay

    def fill(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    op, function, values, keywords = _MAKE[kind](size, fill)
    function = getattr(function, "__wrapped__", function)
    weights = kind != "attention"
    arguments = [each.to(low) if i == 0 or not weights else each for i, each in enumerate(values)]
    arguments = [each.requires_grad_() for each in arguments]
    wide: Any = products.replacement(op, function)
    if wide(low, True, *arguments, **keywords) is NotImplemented:
        return None

    def in_low() -> Any:
        out = function(*(each.to(low) for each in arguments), **keywords)
        return torch.autograd.grad(out, arguments, out.detach())

    def in_fp32() -> Any:
        out = wide(low, True, *arguments, **keywords)
        return torch.autograd.grad(out, arguments, out.detach())

    return in_low, in_fp32


def _time(piece: Callable[[], Any], times: int, clock: Callable[[], int]) -> int:
    begin = clock()
    for _ in range(times):
        piece()
    return clock() - begin


def _ratio(kind: str, size: int, low: torch.dtype, clock: Callable[[], int]) -> float:
    """Returns the speed of 16 bits relative to FP32, by the fastest of a few rounds in turns."""
    pieces = _pieces(kind, size, low)
    if pieces is None:
        return math.inf
    first = [_time(piece, 2, clock) for piece in pieces]  # kernels are made once for a shape
    times = max(1, round(2 * _LEAST_TIME / max(*first, 1)))
    rounds = [[_time(piece, times, clock) for piece in pieces] for _ in range(_ROUNDS)]
    in_low, in_fp32 = (min(each) for each in zip(*rounds, strict=True))
    return in_fp32 / max(in_low, 1)


def measure(low: torch.dtype, clock: Callable[[], int] = time.perf_counter_ns) -> dict[str, bool]:
    """Times each shape class of a 16-bit type on this CPU, in a second or two. Returns whether torch's 16-bit kernels
    are at least 1.05 times as fast."""
    answers = {}
    with rules.forced(rules.FP32), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for kind, sizes in rules.CLASSES.items():
            ratios: list[float] = []
            for size in sizes:
                hopeless = len(ratios) > 1 and max(ratios[-2:]) < _HOPELESS
                ratios.append(0.0 if hopeless else _ratio(kind, size, low, clock))
                answers[rules.shape_class(kind, low, size)] = ratios[-1] >= 1.05
    return answers


# ---- one answer for all ranks ----


def _first_rank(group: Any) -> int | None:
    """Returns the rank that measures for this one, None if this process decides alone. group: process_group of
    initialize."""
    distributed = torch.distributed
    if group is False or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    return 0 if group is None or group is True else int(distributed.get_global_rank(group, 0))


def agree(low: torch.dtype, group: Any = None) -> None:
    """Adopts answers for a 16-bit type, unless this process has them: measured here, or those of the first rank."""
    first = _first_rank(group)
    known = {name: answer for name, answer in rules.measured().items() if f" {rules.name_of(low)} " in name}
    if first is None:
        if not known:
            rules.adopt(measure(low), "this process")
        return
    store = torch.distributed.distributed_c10d._get_default_store()
    key = f"libamp gate {rules.name_of(low)} {first}"
    if torch.distributed.get_rank() == first:
        answers = known or measure(low)
        store.set(key, json.dumps(answers))
    else:
        try:
            store.wait([key], WAIT)
        except Exception as error:
            raise RuntimeError(
                f'gate="measure": rank {first} has measured nothing for {WAIT}. Every rank calls amp.initialize with '
                "it, after init_process_group; with process_group=False each rank measures by itself"
            ) from error
        answers = json.loads(store.get(key))
    rules.adopt(answers, f"rank {first}")
