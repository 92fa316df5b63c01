# SPDX-License-Identifier: Apache-2.0
"""Turns a trace (AMP_TRACE, docs/reference/trace.md) into a page: python -m libamp.report run.jsonl -o report.html

In a notebook libamp.report.show("run.jsonl") shows that page.
"""

import sys
from html import escape
from os import PathLike

from ._report import page, read, text
from ._report.program import main

__all__ = ["main", "show"]


class Report:
    """A report of traces. str() is the report for terminals. A notebook shows the page in a frame."""

    def __init__(self, *traces: "str | PathLike[str]") -> None:
        self._chosen = [(trace, training) for trace in map(read.read, map(str, traces)) for training in trace.trainings]

    def __str__(self) -> str:
        return text.report(self._chosen)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        frame = "width:100%;height:40em;border:0"
        return f'<iframe style="{frame}" srcdoc="{escape(page.page(self._chosen))}"></iframe>'


def show(*traces: "str | PathLike[str]") -> Report:
    """Returns the report of these traces side by side. Raises OSError or libamp._report.read.Unreadable for a trace
    that cannot be read."""
    if not traces:
        raise TypeError("libamp.report.show needs the name of a trace, as AMP_TRACE or --trace wrote it")
    return Report(*traces)


if __name__ == "__main__":
    sys.exit(main())
