# SPDX-License-Identifier: Apache-2.0
"""apex.amp.scaler.LossScaler as a view: the scale and its counters are the library's."""
from __future__ import annotations

import json
from typing import Any

import torch

from .session import live


class LossScaler:
    """One of _amp_state.loss_scalers."""

    def __init__(self, context: Any, loss_id: int, dynamic: bool) -> None:
        self._context, self._id, self.dynamic = context, loss_id, dynamic
        self._told = False
        self._overflow_buf = torch.zeros(1, dtype=torch.int32)

    def loss_scale(self) -> float:
        """What the next loss is multiplied by."""
        return float(self._context.scale(self._id))

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self._load(loss_scale=float(value))

    @property
    def _unskipped(self) -> int:
        return int(read_states(self._context)[f"loss_scaler{self._id}"]["unskipped"])

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._load(unskipped=int(value))

    @property
    def _has_overflow(self) -> bool:
        return self._told or bool(self._context.record(self._id)["skips_in_row"])

    @_has_overflow.setter
    def _has_overflow(self, value: bool) -> None:
        self._told = bool(value)

    def update_scale(self) -> bool:
        """For recipes that reduce and check gradients themselves, after blocks with delay_overflow_check: decides over those
        blocks and over what the caller found and left in _has_overflow or _overflow_buf. True: he should not step."""
        session = next(session for session in live() if session.context is self._context)
        overflow = self._told or bool(torch.as_tensor(self._overflow_buf).any())
        self._told = False
        stashes = [optimizer._amp_stash for optimizer in (ref() for ref in session.optimizers) if optimizer is not None]
        armed = [stash for stash in stashes if stash.already_patched]
        bracket = self._context.begin([stash.index for stash in stashes], self._id, False, False)
        if overflow:  # told the way that the library hears of all others: by a gradient that is not finite
            param = min((param for param, _ in stashes[0]._pairs()), key=torch.Tensor.numel)
            param.grad = torch.full_like(param, float("inf"))
        skip = bool(bracket.end() == 1)
        for stash in stashes:
            if skip and stash not in armed:  # the caller leaves the step out; the one after it is another matter
                self._context.step_begin(stash.index)
                self._context.step_end(stash.index)
        return skip

    def _load(self, **changes: Any) -> None:
        states = read_states(self._context)
        states[f"loss_scaler{self._id}"].update(changes)
        write_states(self._context, states)


def read_states(context: Any) -> dict[str, dict[str, Any]]:
    """{"loss_scaler0": {"loss_scale": ..., "unskipped": ...}, ...}"""
    states: dict[str, dict[str, Any]] = json.loads(context.save(None, "apex"))
    return states


def write_states(context: Any, states: dict[str, dict[str, Any]]) -> None:
    context.load(json.dumps(states).encode())
