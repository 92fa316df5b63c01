# SPDX-License-Identifier: Apache-2.0
"""Horizontal bars: a row for each name, with its figure in words."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .svg import Axis, Picture

LINE, BAR = 24, 15


@dataclass(frozen=True)
class Bar:
    """parts: (value, colour), one after the other. told: behind the bar. head: a heading in place of a bar."""

    name: str
    parts: Sequence[tuple[float, str]] = ()
    told: str = ""
    head: bool = False


def height_of(rows: Sequence[Bar]) -> int:
    return LINE * len(rows)


def draw(picture: Picture, top: float, rows: Sequence[Bar], axis: Axis, left: float = 250, told: float = 150,
         rule: float | None = None) -> None:
    """Draws the rows from `top` on. told: room behind the longest bar. rule: value at which a line crosses the bars."""
    width = picture.width - left - told
    for number, row in enumerate(rows):
        y = top + LINE * number
        picture.text(left - 8 if not row.head else 16, y + BAR - 3, row.name, "", "start" if row.head else "end")
        total = 0.0
        end = left
        for value, fill in row.parts:
            start, end = (left + width * min(max(axis.at(each), 0.0), 1.0) for each in (
                max(total, axis.low), max(total + value, axis.low)))
            picture.rect(start, y, max(end - start, 1.0), BAR, fill)
            total += value
        picture.text(end + 6, y + BAR - 3, row.told, "small")
        if rule is not None and not row.head:
            x = left + width * axis.at(rule)
            picture.add("line", class_="axis", x1=x, x2=x, y1=y - 4, y2=y + BAR + 5, stroke_dasharray="4 3")
