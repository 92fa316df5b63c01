# SPDX-License-Identifier: Apache-2.0
"""python -m libamp.run --survey: observes a script and reports the effect of each level at its end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from ._environment import switch

SURVEY = "LIBAMP_SURVEY"  # environment variable: surveys are wanted
_surveys: list[str] = []  # surveys of ended contexts


def add(context: Any, models: Any = ()) -> None:
    """Saves the survey of a context and its models, before it ends, for the end of the script."""
    if switch(SURVEY):
        from .torch.amp import buffer_rounding

        with contextlib.suppress(RuntimeError):  # nothing was observed
            _surveys.append(context.survey()[-1] + buffer_rounding.text_of(buffer_rounding.by_level(models)))


def run(script: Callable[[], Any]) -> Any:
    """Runs the script and writes the surveys to standard error, however it ends."""
    os.environ[SURVEY] = "1"
    os.environ.setdefault("AMP_OBSERVE", "every=10,first=10")
    kept = None
    try:
        kept = script()  # its globals keep objects alive for the survey
        return kept
    finally:
        _print_surveys()
        del kept


def done(script: Callable[[], Any]) -> int:
    """Returns the status of a script that has ended normally."""
    script()
    return 0


def _print_surveys() -> None:
    taken, _surveys[:] = list(_surveys), []
    session = sys.modules.get("libamp.torch.amp.session")
    if session is not None:
        for each in session.live():
            add(each.context, each.present_models())
        taken += _surveys
    words = [f"libamp.run: amp.initialize {number} of {len(taken)}: {text}" for number, text in enumerate(taken, 1)]
    if not taken:
        words.append("libamp.run: nothing was observed: no block of amp.scale_loss has ended, or AMP_OBSERVE is 0\n")
    sys.stdout.flush()
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write("\n" * sys.stderr.isatty() + "".join(words))
            sys.stderr.flush()
