# SPDX-License-Identifier: Apache-2.0
"""python -m libamp.run --check: looks for mistakes until the script ends, then writes a report."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from . import _findings


def run(script: Callable[[], Any]) -> int:
    """Runs the script and writes the findings to standard error. Returns the script's status, or 1 if that is 0 and
    there are findings."""
    os.environ[_findings.STRICT] = "1"
    warnings.simplefilter("always", _findings.FindingWarning)
    try:
        kept = script()  # its globals keep objects alive for the report
    except SystemExit as left:
        found = _print_reports()
        if left.code not in (None, 0):
            raise
    except BaseException:
        _print_reports()
        raise
    else:
        found = _print_reports()
        del kept
    return 1 if found else 0


def _print_reports() -> int:
    """Prints the report of every context, ended ones first, and all findings. Returns their number."""
    reports = _findings.take_reports()
    session = sys.modules.get("libamp.torch.amp.session")
    if session is not None:
        reports += [_findings.report(each.context, each.record) for each in session.live()]
    words = [f"libamp.run: amp.initialize {number} of {len(reports)}\n{text}" for number, text in enumerate(reports, 1)]
    tried, torch = sys.modules.get("libamp.torch._tested_versions"), sys.modules.get("torch")
    if reports and tried is not None and torch is not None and (untried := tried.outside(torch.__version__)):
        words.insert(0, f"{untried}\n")
    if not reports:
        words.append("libamp.run: nothing went through amp.initialize\n")
    found = len(_findings.take_checked())
    count = "no finding" if not found else "1 finding" if found == 1 else f"{found} findings"
    words.append(f"libamp.run: {count}{'; docs/reference/mistakes.md says why each is wrong' if found else ''}\n")
    sys.stdout.flush()
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed: the status is the result
            sys.stderr.write("".join(words))
            sys.stderr.flush()
    return found
