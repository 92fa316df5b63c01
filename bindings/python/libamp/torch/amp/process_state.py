# SPDX-License-Identifier: Apache-2.0
"""What the last initialize left in the process, and the verbosity of what is printed: apex.amp._amp_state."""
from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch


class AmpState:
    """opt_properties, loss_scalers and handle exist from the first initialize on; loss_scalers and handle are views of
    the context that was initialised last."""

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
loss_probes: weakref.WeakSet[Any] = weakref.WeakSet()  # what measures the next scaled loss


def rank() -> int:
    """This process's place in torch.distributed, or 0."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0") or 0)


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Apex's print: not with verbosity 0; rank0: on the first rank alone."""
    if _amp_state.verbosity > 0 and not (rank0 and rank() > 0):
        print(msg)


def warn_or_err(msg: str) -> None:
    """RuntimeError, or a printed warning where _amp_state.hard_override is set."""
    if not _amp_state.hard_override:
        raise RuntimeError(msg)
    print("Warning:  " + msg)


def master_params(optimizer: Any) -> Iterator[torch.Tensor]:
    """What the optimizer updates: FP32 masters where there are masters, else the model's parameters."""
    stash = getattr(optimizer, "_amp_stash", None)
    if stash is not None:
        stash.session.settle()
    for group in optimizer.param_groups:
        yield from group["params"]
