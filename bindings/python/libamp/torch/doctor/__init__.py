# SPDX-License-Identifier: Apache-2.0
"""The doctor: looks at any training in PyTorch, and names what its numbers lose.

    with amp.doctor() as doctor:
        train()
    doctor.result.found

`python -m libamp.doctor train.py` does the same for a script. It changes no cast, no scale, no step and no random
number, issues no collective and waits for no GPU until it ends. docs/guide/doctor.md is its guide.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from ... import _check, _findings
from . import taps
from .recorder import Watch
from .result import Result, judge, write
from .watch import Run

__all__ = ["Doctor", "Result", "begin", "doctor", "end"]


def begin(script: str = "") -> Watch:
    """Begins to look at this process."""
    run = Run(script, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), str(torch.__version__))
    recorder = Watch(run)
    _findings.keep_reports(True)
    taps.put(recorder)
    return recorder


def end(recorder: Watch) -> Result:
    """Ends it: takes all taps out of torch, reads the numbers and judges them."""
    taps.put_back()
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_available() else 0
    if mode:
        torch.cuda.set_sync_debug_mode(0)  # the numbers are read now
    try:
        run = recorder.finish()
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)
    run.libamp, found = _check.sessions()
    _findings.keep_reports(False)
    return Result(run, judge(run), found, [run.rank])


class Doctor:
    """A context that looks at the trainings inside it. It prints what it found at its end.

    strict: raises RuntimeError at the end if there are findings. quiet: prints nothing. json: the name of a file for
    the result.
    """

    def __init__(self, strict: bool = False, quiet: bool = False, json: str | None = None) -> None:
        self.strict, self.quiet, self.json = strict, quiet, json
        self._watch: Watch | None = None
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        """The result, after the end."""
        if self._result is None:
            do = "leave its `with` block first" if self._watch is not None else "use `with amp.doctor() as doctor:`"
            raise AttributeError(f"the doctor has no result before its end: {do}")
        return self._result

    def __enter__(self) -> Doctor:
        self._watch = begin()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        recorder, self._watch = self._watch, None
        if recorder is None:
            return
        self._result = end(recorder)
        if self.json:
            write(self.result, self.json)
        if not self.quiet:
            print(self.result.text(), end="", file=sys.stderr)
        if self.strict and kind is None and self.result.status(strict=True):
            raise RuntimeError(self.result.text())


def doctor(strict: bool = False, quiet: bool = False, json: str | None = None) -> Doctor:
    """Returns a context that looks at every training in PyTorch inside it, with libamp or without. Its result is
    `doctor.result` after the end.

    strict: bool, raises RuntimeError at the end if there are findings.
    quiet: bool, prints nothing at the end.
    json: str, the name of a file for the result.
    """
    return Doctor(strict, quiet, json)
