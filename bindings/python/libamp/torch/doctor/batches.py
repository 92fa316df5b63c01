# SPDX-License-Identifier: Apache-2.0
"""The latest batches of DataLoaders, as long as the script keeps them: after a loss that is not finite they are asked
for an inf or NaN of their own. Without a loss scaler that loss reaches all weights in one step, and later iterations
show nothing but these."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from .places import script_place
from .samples import is_readable
from .watch import NOWHERE, Cause

FIRST = 12  # finite losses whose batches are asked, too


class Batches:
    """Weak references to tensors of the host. A loader may be a batch ahead of the loss."""

    def __init__(self) -> None:
        self.suspect: Cause | None = None  # the batch of the first loss that was not finite
        self.usual: set[str] = set()  # "NaN", "inf", "-inf" of batches with a finite loss: missing values, masks
        self._latest: deque[list[tuple[str, Any]]] = deque(maxlen=2)
        self._place = NOWHERE
        self._asked = 0

    def add(self, tensors: list[tuple[str, Any]]) -> None:
        """Notes a batch, as keys and tensors."""
        self._place = script_place()
        self._latest.appendleft([(key, weakref.ref(tensor)) for key, tensor in tensors])

    def on_loss(self, iteration: int, is_finite: bool) -> None:
        """Runs when the value of a loss is known."""
        if self.suspect is not None:
            return
        if not is_finite:
            self.suspect = next((bad for bad in self._bad(iteration) if self._is_strange(bad.value)), None)
        elif self._asked < FIRST:
            self._asked += 1
            self.usual |= {bad.value for bad in self._bad(iteration)}

    def _is_strange(self, value: str) -> bool:
        """Returns True for a value that no batch with a finite loss had. Masks are made of -inf: without such a batch
        to compare with it is none."""
        return value not in self.usual and (value != "-inf" or self._asked > 0)

    def _bad(self, iteration: int) -> Iterator[Cause]:
        for key, ref in (each for batch in self._latest for each in batch):
            tensor = ref()
            if tensor is None or tensor.device.type != "cpu" or not is_readable(tensor) or tensor.isfinite().all():
                continue
            count = int((~tensor.isfinite()).sum())
            value = "NaN" if bool(tensor.isnan().any()) else "inf" if bool(tensor.isposinf().any()) else "-inf"
            share = count / tensor.numel()
            yield Cause(iteration, "batch", key, value, place=self._place, after="loss", share=share, count=count)
