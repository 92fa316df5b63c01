# SPDX-License-Identifier: Apache-2.0
"""Histograms of exponents from libamp's observation, as JSON. Without torch: amp.observations() are given."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .figure import Data
from .svg import Axis, Picture, Plot, power

LEAST, NORMAL, END = -24, -14, 16  # exponents of fp16: its least number, its least normal one, the first beyond it


def histogram(statistics: Iterable[Any], scales: Iterable[int] = ()) -> Data:
    """Returns the sum of libamp.kernels.Statistics: elements, zeros, counts of each binade from 2^first on, and by
    scale the numbers that a cast to fp16 makes zero (exactly, as libamp rounds)."""
    all_of = list(statistics)
    binades: dict[int, int] = {}
    for seen in all_of:
        for exponent, count in seen.binades.items():
            binades[exponent] = binades.get(exponent, 0) + count
    first = min(binades, default=0)
    return {"elements": sum(seen.elements for seen in all_of), "zeros": sum(seen.zeros for seen in all_of),
            "first": first, "counts": [binades.get(first + i, 0) for i in range(max(binades, default=0) - first + 1)],
            "lost": {str(scale): sum(seen.lost("float16", float(scale)).zeros for seen in all_of) for scale in scales}}


def share_below(data: Data, exponent: int) -> float:
    """Returns the percentage of nonzero elements below 2^exponent."""
    below = sum(count for at, count in enumerate(data["counts"], data["first"]) if at < exponent)
    return 100 * below / max(data["elements"] - data["zeros"], 1)


def bars(picture: Picture, data: Data, box: tuple[float, float, float, float], ends: tuple[int, int], title: str,
         fill: str, x: str = "exponent") -> Plot:
    """Draws the share of all elements in each binade, in fp16's range and, in red, below it. The binades beyond the
    ends are added to the outermost bars."""
    shares: dict[int, float] = {}
    for at, count in enumerate(data["counts"], data["first"]):
        at = min(max(at, ends[0]), ends[1] - 1)
        shares[at] = shares.get(at, 0.0) + 100 * count / data["elements"]
    ticks = [(k, power(k)) for k in range(ends[0], ends[1] + 1) if k % 8 == 0]
    top = max(shares.values(), default=1.0)
    plot = Plot(picture, *box, Axis(*ends, x, ticks), Axis(0, top * 1.15, "% of all elements"), title)
    for at, share in sorted(shares.items()):
        plot.bar(at + 0.08, at + 0.92, 0, share, "var(--bad)" if at < LEAST else fill)
    plot.rule(LEAST, "2⁻²⁴", "end")
    return plot
