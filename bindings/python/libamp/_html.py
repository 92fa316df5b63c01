# SPDX-License-Identifier: Apache-2.0
"""HTML for notebooks instead of text, in the colours of the page, without scripts and resources."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["Rows", "Text", "display", "escaped", "in_notebook", "lines", "size", "table"]

_CELL = "padding:.15em .8em .15em 0;vertical-align:top;text-align:{};overflow-wrap:normal"


def size(count: int) -> str:
    x, unit = float(count), 0
    while x >= 1024 and unit < 4:
        x, unit = x / 1024, unit + 1
    return f"{x:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def escaped(value: object) -> str:
    return html.escape(str(value))


def _format(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _row(tag: str, values: Sequence[object], right: Sequence[bool]) -> str:
    styles = (_CELL.format("right" if number else "left") for number in right)
    cells = (f'<{tag} style="{s}">{escaped(_format(v))}</{tag}>' for s, v in zip(styles, values, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table. Columns of numbers are right-aligned. On a narrow page it scrolls."""
    listed = list(rows)
    right = [isinstance(value, (int, float)) for value in (listed[0] if listed else head)]
    heads = _row("th", head, right)
    body = "".join(_row("td", row, right) for row in listed)
    caption = f'<caption style="text-align:left;font-weight:bold">{escaped(title)}</caption>' if title else ""
    return (
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse">{caption}'
        f"<thead>{heads}</thead><tbody>{body}</tbody></table></div>"
    )


def lines(text: str) -> str:
    """Returns the text in its lines, wrapped at the edge of the page."""
    return f'<pre style="white-space:pre-wrap;overflow-wrap:anywhere">{escaped(text.rstrip())}</pre>'


class Text(str):
    """Text with an HTML form `shown` for notebooks, by default its lines."""

    def __new__(cls, text: str, shown: str = "") -> Text:
        made = super().__new__(cls, text)
        made._shown = shown or lines(text)
        return made

    _shown: str

    def _repr_html_(self) -> str:
        return self._shown


class Rows(list[Any]):
    """A list of named tuples that a notebook shows as a table."""

    def __init__(self, items: Iterable[Any], title: str, head: Sequence[str], row: Any) -> None:
        super().__init__(items)
        self._title, self._head, self._row = title, head, row

    def _repr_html_(self) -> str:
        return table(self._title, self._head, map(self._row, self))


def in_notebook() -> bool:
    """Returns True in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def display(shown: Any) -> None:
    """Displays in a notebook."""
    sys.modules["IPython"].display.display(shown)
