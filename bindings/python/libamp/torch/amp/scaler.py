# SPDX-License-Identifier: Apache-2.0
"""apex.amp.scaler.LossScaler as a view: the scale and its counters are the library's."""
from __future__ import annotations

import json
from typing import Any


class LossScaler:
    """One of _amp_state.loss_scalers."""

    def __init__(self, context: Any, loss_id: int, dynamic: bool) -> None:
        self._context, self._id, self.dynamic = context, loss_id, dynamic

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
        record = self._context.record(self._id)
        return bool(record["skips_in_row"])

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
