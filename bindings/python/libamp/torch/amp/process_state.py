# SPDX-License-Identifier: Apache-2.0
"""State of the last initialize call of the process, and the verbosity of its messages: apex.amp._amp_state."""
from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch


class AmpState:
    """The class of _amp_state. opt_properties, loss_scalers and handle exist after the first initialize. loss_scalers
    and handle are views of the last context."""

    def __init__(self) -> None:
        self.hard_override = False
        self.allow_incoming_model_not_fp32 = False
        self.verbosity = 1
        self.min_loss_scale: float | None = None
        self.max_loss_scale: float | None = None

    opt_properties: Any
    loss_scalers: list[Any]
    handle: Any


_amp_state = AmpState()
loss_probes: weakref.WeakSet[Any] = weakref.WeakSet()  # probes that measure the next scaled loss


def rank() -> int:
    """Returns the rank of this process in torch.distributed, or 0."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0") or 0)


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Prints msg unless the verbosity is 0, as Apex's function does. rank0: print on rank 0 only."""
    if _amp_state.verbosity > 0 and not (rank0 and rank() > 0):
        print(msg)


def warn_or_err(msg: str) -> None:
    """Raises RuntimeError, or prints a warning if _amp_state.hard_override is set."""
    if not _amp_state.hard_override:
        raise RuntimeError(msg)
    print("Warning:  " + msg)


def master_params(optimizer: Any) -> Iterator[torch.Tensor]:
    """Iterates over the tensors that the optimizer updates: FP32 masters where there are some, else the model's
    parameters. Use it for clip_grad_norm_, as with Apex."""
    stash = getattr(optimizer, "_amp_stash", None)
    if stash is not None:
        stash.session.settle()
    for group in optimizer.param_groups:
        yield from group["params"]
