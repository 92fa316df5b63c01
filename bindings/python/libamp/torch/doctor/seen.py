# SPDX-License-Identifier: Apache-2.0
"""The state of optimizers and scalers while a run is recorded."""

from __future__ import annotations

import time
import weakref
from typing import Any

from . import watch
from .samples import Samples

FIRST = 16  # steps of an optimizer that are looked at in any case
SHARE = 0.01  # of the time, for later looks: the taps between them have the rest of 3 %


class Budget:
    """Decides when a look is due: all looks together have a share of the time since the first, and each is paid off by
    the time that follows, so that a long compilation or a pause does not allow many at once."""

    def __init__(self, began: float = 0.0, cost: float = 0.0) -> None:
        self.began, self.cost = began, cost
        self.count = 0
        self.due = 0.0

    def is_due(self, now: float) -> bool:
        return self.count < FIRST or now >= self.due

    def paid(self, cost: float, now: float, parts: int = 1) -> None:
        """A look is done. parts: number of optimizers that share the time."""
        self.count += 1
        self.cost += cost
        self.due = max(now + cost * parts / SHARE, self.began + self.cost * parts / SHARE)


class Seen:
    """An optimizer that stepped."""

    def __init__(self, optimizer: Any, index: int, record: watch.Optimizer) -> None:
        self.ref = weakref.ref(optimizer)
        self.index = index
        self.record = record
        self.budget = Budget(time.perf_counter())
        self.samples: Samples | None = None
        self.looking = False
        self.cost = 0.0
        self.skipped = False  # the last step, by the host
        self.decides: Any = None  # the flag by which the device decides on the last step
        self.attempts = 0  # since the scheduler's last step
        self.bypassed = 0
        self.bypassed_place = watch.NOWHERE
        self.by_scaler = False  # a scaler has stepped it
        self.groups: dict[int, int] = {}  # by parameter: index of its group
        self.lrs: list[list[float]] = []  # of each group: at the first look, largest, last
        self.state: dict[int, dict[str, str]] = {}


class Scaled:
    """A scaler in use, since its last update."""

    def __init__(self, scaler: Any, record: watch.Scaler) -> None:
        self.ref = weakref.ref(scaler)
        self.record = record
        self.pending = 0  # scaled losses without a backward
        self.open = False  # gradients are scaled
        self.unscaled: set[int] = set()
        self.stepped: set[int] = set()
        self.stepping = self.taking = False  # in step, in unscale_
