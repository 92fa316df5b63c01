# SPDX-License-Identifier: Apache-2.0
"""The warning about a nonfinite loss at a static scale of 1, which is given once."""
from __future__ import annotations

from typing import Any

import torch

from ... import _core
from .process_state import maybe_print


def casts_to_half(level: str, resolved: dict[str, Any]) -> bool:
    """Returns True if parameters or arguments become float16."""
    by_op = resolved["patch_ops"] and _core.levels()[level][0] == "float16"
    return bool(resolved["cast_model_type"] == "float16" or by_op)


class NonFinite:
    """Warns once of a nonfinite loss at a static scale of 1, at which no step is skipped. A loss on a GPU is read in a
    later block, when it has arrived, without waiting."""

    def __init__(self) -> None:
        self.told = False
        self._coming: tuple[Any, torch.Tensor] | None = None

    def check(self, loss: torch.Tensor) -> None:
        finite = self._arrived(loss)
        if finite is not None and not bool(finite):
            self.told = True
            maybe_print(
                "Warning:  the loss is infinite or NaN, and at a static loss scale of 1 every step is taken: weights "
                "become NaN. float16 ends at 65504. Levels that go on: O2 with a dynamic loss scale, which skips such "
                "steps, and O5 with bfloat16, which has the range of FP32.",
                True,
            )

    def _arrived(self, loss: torch.Tensor) -> torch.Tensor | None:
        """Returns whether a loss was finite: this one on a CPU, the last copied one from a GPU."""
        if loss.device.type == "cpu":
            return torch.isfinite(loss.detach()).all()
        if loss.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        arrived = None
        if self._coming is not None:
            if not self._coming[0].query():
                return None
            arrived = self._coming[1]
        copy = torch.empty((), dtype=torch.bool, pin_memory=True)
        copy.copy_(torch.isfinite(loss.detach()).all(), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._coming = event, copy
        return arrived
