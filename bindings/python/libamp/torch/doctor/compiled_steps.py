# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers inside functions of torch.compile, which run none of torch's hooks: torch's count of writes to a
parameter shows them behind a call. Functions that were compiled before the doctor began have no tap: their steps show
at the next backward, or at the end."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .names import optimizers


def frames() -> int:
    """Returns the number of frames that torch.compile has looked at in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return sum(utils.counters.get("frames", {}).values()) if utils is not None else 0


def _version(optimizer: Any) -> int:
    try:
        return int(next(param for group in optimizer.param_groups for param in group["params"])._version)
    except (RuntimeError, StopIteration):  # made in inference_mode, or no parameter
        return -1


class CompiledSteps:
    """The optimizers of the process, where compiled functions may step them."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.calls = self.backwards = 0
        self.known: list[weakref.ref[Any]] = []
        self.versions: dict[int, int] = {}
        self.first: dict[int, int] = {}  # versions when the doctor began
        self.early = frames() > 0  # there may be functions without a tap
        if self.early:
            self.known = [weakref.ref(optimizer) for optimizer in optimizers()]
            self.first = {id(optimizer): _version(optimizer) for optimizer in self._live()}

    def _live(self) -> list[Any]:
        return [optimizer for ref in self.known if (optimizer := ref()) is not None]

    def on_call(self) -> None:
        """Runs behind a call of a compiled function."""
        self.calls += 1
        if self.calls & (self.calls - 1) == 0:
            self.known = [weakref.ref(optimizer) for optimizer in optimizers()]
        for optimizer in self._changed():
            self.recorder.on_outside_step(optimizer)

    def on_backward(self) -> None:
        """Runs before a backward. Weights are loaded before the first one."""
        if not self.early:
            return
        self.backwards += 1
        for optimizer in self._changed():
            if self.backwards > 1:
                self.recorder.on_outside_step(optimizer)

    def know(self, optimizer: Any) -> None:
        """Notes a step that was seen."""
        self.versions[id(optimizer)] = _version(optimizer)

    def _changed(self) -> list[Any]:
        """Returns the optimizers without hooks whose first parameter was written since the last call."""
        found = []
        for optimizer in self._live():
            if self.recorder.has_hooks(optimizer):
                continue
            version = _version(optimizer)
            first = self.first.get(id(optimizer), -1 if optimizer.state else version)
            before = self.versions.get(id(optimizer), first)
            self.versions[id(optimizer)] = version
            if version != before:
                found.append(optimizer)
        return found

    def unseen(self) -> list[str]:
        """Returns the kinds of optimizers that stepped and were never looked at. A state that was loaded is one write
        of a parameter."""
        seen = self.recorder.seen
        return [
            type(optimizer).__name__
            for optimizer in self._live()
            if id(optimizer) not in seen and _version(optimizer) > self.first.get(id(optimizer), sys.maxsize - 1) + 1
        ]
