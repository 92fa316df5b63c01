# SPDX-License-Identifier: Apache-2.0
"""Two trainings beside each other: where they part first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .facts import Subject, subjects_of
from .read import Line, Training

# The root mean square of the same thing in the same iteration: sixteen bits move it by less, a fault by more.
PARTED = 0.1


@dataclass
class Parting:
    n: int
    label: str
    how: str
    order: int


def rms(shot: Line) -> float | None:
    squares, elements = shot.get("sum_squares"), shot["elements"]
    return math.sqrt(squares / elements) if squares is not None and squares >= 0 and elements else None


def bad(shot: Line) -> int:
    return int(shot["nans"] + shot["plus_infinities"] + shot["minus_infinities"])


def parts(a: Line, b: Line) -> str | None:
    if bool(bad(a)) != bool(bad(b)):
        return f"{bad(a)} and {bad(b)} that are not finite"
    if a["elements"] != b["elements"]:
        return f"{a['elements']} and {b['elements']} elements"
    x, y = rms(a), rms(b)
    if x is None or y is None or x == y:
        return None
    if min(x, y) == 0 or abs(x - y) > PARTED * max(x, y):
        return f"root mean square {x:.4g} and {y:.4g}"
    return None


def first_of(a: Subject, b: Subject, order: int) -> Parting | None:
    others = {shot["n"]: shot for shot in b.shots}
    for shot in a.shots:
        other = others.get(shot["n"])
        how = parts(shot, other) if other else None
        if how:
            return Parting(shot["n"], a.label, how, order)
    return None


def partings(a: Training, b: Training) -> tuple[list[Parting], int]:
    """Of what was observed in the same iteration of both, the earliest first, and how many things that was. Gradients
    that carry a loss scale are not held against each other."""
    of_b = {subject.key: subject for subject in subjects_of(b)}
    both = [(x, of_b[x.key]) for x in subjects_of(a) if x.key in of_b and x.what != "scaled"]
    found = [first_of(x, y, order) for order, (x, y) in enumerate(both)]
    return sorted((p for p in found if p), key=lambda p: (p.n, p.order)), len(both)


def first_decision(a: Training, b: Training) -> Parting | None:
    """The first bracket that stepped in the one and was skipped in the other."""
    others = {line["n"]: line["action"] for line in b.brackets}
    for line in a.brackets:
        other = others.get(line["n"])
        if other and other != line["action"]:
            return Parting(line["n"], "the step", f"{line['action']} and {other}", -1)
    return None
