# SPDX-License-Identifier: Apache-2.0
"""Lines of tools/bench as rows of a table and as bars: libamp beside a peer."""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .bars import Bar, draw, height_of
from .figure import Data
from .svg import Axis, Picture, colour

FASTER = ("Above 1 libamp is faster. Figures are medians of ratios of processor time, of rounds in turns, with their "
          "quartiles.")


def of_peers(data: Data) -> list[Data]:
    """Returns the lines that have another library for reference."""
    return [line for line in data["lines"] if line["reference_name"].startswith("torch")]


def name_of(line: Data) -> str:
    return f"{line['name']}, {line['size']}"


def peer_of(line: Data) -> str:
    """Returns the reference without torch's version, which `peers` has."""
    name: str = re.sub(r"^torch [^,]+, ", "", line["reference_name"])
    others = ("bitsandbytes", "torchao", "numkong")
    return name if name == line["reference_name"] or name.startswith(others) else f"torch, {name}"


def short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def ratio_of(line: Data) -> str:
    return f"{short(line['ratio'])}x"


def rows_of(lines: Iterable[Data]) -> list[list[object]]:
    return [[name_of(line), peer_of(line), f"{ratio_of(line)} ({' to '.join(map(short, line['quartiles']))})"]
            for line in lines]


def measured_with(data: Data) -> str:
    """Returns a sentence with the peers' versions, those that were not installed, and the load of the machine."""
    there = [f"{name} {version}" for name, version in data["peers"].items() if version]
    absent = [name for name, version in data["peers"].items() if not version]
    before, after = (" ".join(f"{each:.1f}" for each in load[:1]) for load in data["load"])
    missing = f". Not installed: {', '.join(absent)}" if absent else ""
    return f"Peers: {', '.join(there) or 'none'}{missing}. Load of the machine at begin and end: {before}, {after}."


def draw_lines(title: str, lines: Sequence[Data], low: float, high: float, by_peer: bool = False) -> str:
    """Bars of ratios on a logarithmic axis, under the name of ours, or by_peer under the peer's. Those below 1 have
    another colour."""
    rows: list[Bar] = []
    head = ""
    for line in lines:
        peer = re.sub(r", (?:fp32|fp16|bf16)$", "", peer_of(line)) if by_peer else peer_of(line)
        above, name = (f"beside {peer}", name_of(line)) if by_peer else (name_of(line), peer)
        if above != head:
            head = above
            rows.append(Bar(head, head=True))
        ratio = line["ratio"]
        rows.append(Bar(name, [(ratio, colour(0) if ratio >= 0.995 else "var(--bad)")], ratio_of(line)))
    picture = Picture(760, 76 + height_of(rows) + 10, title, "Bars: how many times as fast libamp is as each peer.")
    picture.text(16, 50, "Times as fast as the peer (logarithmic; broken line: as fast)")
    draw(picture, 76, rows, Axis(low, high, "", log=True), left=350, told=60, rule=1)
    return picture.svg()
