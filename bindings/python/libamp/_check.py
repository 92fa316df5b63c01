# SPDX-License-Identifier: Apache-2.0
"""Reports and findings of libamp's own sessions, for the doctor."""

from __future__ import annotations

import sys

from . import _findings


def sessions() -> tuple[list[str], int]:
    """Returns the report of every context since the last call, ended ones first, and the number of their findings."""
    reports = _findings.take_reports()
    session = sys.modules.get("libamp.torch.amp.session")
    if session is not None:
        reports += [_findings.report(each.context, each.record) for each in session.live()]
    words = [f"amp.initialize {number} of {len(reports)}\n{text}" for number, text in enumerate(reports, 1)]
    tried, torch = sys.modules.get("libamp.torch._tested_versions"), sys.modules.get("torch")
    if reports and tried is not None and torch is not None and (untried := tried.outside(torch.__version__)):
        words.insert(0, f"{untried}\n")
    return words, len(_findings.take_checked())
