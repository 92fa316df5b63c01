# SPDX-License-Identifier: Apache-2.0
"""Numbers of a GPU, read without waiting for it. They are copied into pinned memory behind the work that makes
them, and are read when an event says that they have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_SLOTS = 1024


def is_here(device: Any) -> bool:
    """Returns True for a device whose numbers are read without waiting."""
    return bool(device.type == "cpu")


class Later:
    """A queue of numbers on their way."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, Any, Callable[[Any], None]]] = deque()
        self._pinned: Any = None
        self._next = 0

    def put(self, number: Any, then: Callable[[float], None]) -> None:
        """Calls then(value) of a tensor with one element: at once on the CPU, else when it has arrived."""
        if is_here(number.device):
            then(float(number))
            return

        def first(values: list[float]) -> None:
            then(values[0])

        if number.device.type != "cuda":  # no events that torch of all versions has: at the end
            self._waiting.append((None, number.detach().reshape(1).clone(), first))
            return
        if self._pinned is None:
            self._pinned = torch.zeros(_SLOTS, dtype=torch.float32, pin_memory=True)
        if len(self._waiting) >= _SLOTS:
            return  # the host is a thousand numbers ahead: these are lost
        slot = self._pinned[self._next : self._next + 1]
        self._next = (self._next + 1) % _SLOTS
        slot.copy_(number.detach().reshape(1).float(), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(number.device))
        self._waiting.append((arrived, slot, first))

    def put_all(self, numbers: list[Any], then: Callable[[list[float]], None]) -> None:
        """Calls then(values) of tensors with one element each, which may be on several devices."""
        places = {number.device for number in numbers}
        if all(map(is_here, places)):
            then([float(number) for number in numbers])
            return
        first = next(place for place in places if not is_here(place))
        vector = torch.stack([number.to(first, non_blocking=True) for number in numbers])
        if first.type != "cuda":
            self._waiting.append((None, vector, then))
            return
        pinned = torch.empty(len(numbers), dtype=vector.dtype, pin_memory=True)
        pinned.copy_(vector, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(first))
        self._waiting.append((arrived, pinned, then))

    def poll(self) -> None:
        """Delivers the numbers that have arrived, in their order."""
        while self._waiting and self._waiting[0][0] is not None and self._waiting[0][0].query():
            _deliver(*self._waiting.popleft()[1:])

    def drain(self) -> None:
        """Delivers all, at the end of the run. This waits."""
        while self._waiting:
            arrived, slot, then = self._waiting.popleft()
            if arrived is not None:
                arrived.synchronize()
            _deliver(slot, then)


def _deliver(values: Any, then: Callable[[Any], None]) -> None:
    then(values.cpu().tolist())
