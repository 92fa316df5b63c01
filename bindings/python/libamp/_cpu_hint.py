# SPDX-License-Identifier: Apache-2.0
"""Adds a hint at python -m libamp.run --cpu to the traceback of a script that fails because torch has no GPU."""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import TracebackType

LINE = "libamp.run: torch sees no GPU here; `python -m libamp.run --cpu …` runs the script on the CPU\n"
_WORDS = re.compile(r"cuda|nvidia|nccl|\bgpu|\bcpu\b", re.IGNORECASE)


def _is_about_gpu(error: BaseException) -> bool:
    """Returns True by the text of the error, or by the line that raised it: `assert torch.cuda.is_available()` has no
    text."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return any(_WORDS.search(text) for text in (str(error), *(frame.line or "" for frame in last)))


def _is_wanted(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or os.environ.get("LOCAL_RANK", "0") != "0":
        return False
    return _is_about_gpu(error) and not torch.cuda.is_available()


def install() -> None:
    """Installs the hint in the process of the script, before the script runs."""
    own = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own(kind, error, trace)
        if _is_wanted(error) and sys.stderr is not None:
            sys.stderr.write(LINE)

    sys.excepthook = excepthook
