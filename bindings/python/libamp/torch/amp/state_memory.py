# SPDX-License-Identifier: Apache-2.0
"""The moments of the optimizers in bytes: for amp.memory, amp.survey, the trace and the report. The context knows only
those of its own optimizers in C."""
from __future__ import annotations

import importlib
from typing import Any

import torch

from .._dtensors import local_part
from .compiling import outside
from .session import Session

_OTHERS = ("master_param",)  # state that is no moment


def _bytes_of(state: dict[Any, Any], param: torch.Tensor) -> tuple[int, bool]:
    """Returns the bytes of the moments of a parameter, and True if one of them is FP32."""
    size, wide = 0, False
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or name in _OTHERS or (value.ndim == 0 and param.ndim > 0):
            continue  # counts of steps
        own = local_part(value)
        size += own.numel() * own.element_size()
        wide = wide or (value.dtype is torch.float32 and value.shape == param.shape)
    return size, wide


def moments_of(session: Session) -> tuple[int, int]:
    """Returns the bytes of the moments of all optimizers, now and if FusedAdam stored its in 8 bits."""
    eight_bits = importlib.import_module("libamp.torch.optimizers.eight_bits")
    adam = importlib.import_module("libamp.torch.optimizers").FusedAdam
    now = coded = 0
    for optimizer in (ref() for ref in session.optimizers):
        fits = isinstance(optimizer, adam) and not optimizer.capturable
        for param, state in getattr(optimizer, "state", {}).items():
            if not isinstance(param, torch.Tensor) or not isinstance(state, dict):
                continue
            size, wide = _bytes_of(state, param)
            n = local_part(param).numel()
            now += size
            possible = fits and wide and eight_bits.are_possible(param)
            coded += 2 * (n + 4 * -(-n // eight_bits.BLOCK)) if possible else size
    return now, coded


@outside
def report(session: Session) -> None:
    """Reports them to the context."""
    session.context.observe_moments(*moments_of(session))
