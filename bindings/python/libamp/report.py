# SPDX-License-Identifier: Apache-2.0
"""A trace (AMP_TRACE, docs/reference/trace.md) as a page to look at: python -m libamp.report run.jsonl -o report.html

In a notebook libamp.report.show("run.jsonl") is that page.
"""

import sys
from html import escape
from os import PathLike

from ._report import page, read, text
from ._report.program import main

__all__ = ["main", "show"]


class Report:
    """str() is the report for terminals; a notebook shows the page, in a frame of its own."""

    def __init__(self, *traces: "str | PathLike[str]") -> None:
        self._chosen = [(trace, training) for trace in map(read.read, map(str, traces)) for training in trace.trainings]

    def __str__(self) -> str:
        return text.report(self._chosen)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        frame = "width:100%;height:40em;border:0"
        return f'<iframe style="{frame}" srcdoc="{escape(page.page(self._chosen))}"></iframe>'


def show(*traces: "str | PathLike[str]") -> Report:
    """The report of these traces, beside each other. An OSError, or libamp._report.read.Unreadable, says what is wrong
    with one."""
    if not traces:
        raise TypeError("libamp.report.show needs the name of a trace, as AMP_TRACE or --trace wrote it")
    return Report(*traces)


if __name__ == "__main__":
    sys.exit(main())
