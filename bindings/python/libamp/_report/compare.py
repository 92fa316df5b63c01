# SPDX-License-Identifier: Apache-2.0
"""Compares two trainings and finds their first difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .facts import Subject, subjects_of
from .read import Line, Training

# Limit for root mean squares of one value in one iteration: 16 bits change it by less, a fault by more.
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


def readings(shot: Line, scale: float) -> list[float]:
    """Returns the root mean squares to compare, without the loss scale if backward made the value. An input of backward
    may be a gradient or a value of forward."""
    plain = rms(shot)
    if plain is None:
        return []
    in_backward = shot.get("in_backward", False)
    if shot["what"] == "scaled" or (in_backward and shot["what"] == "output"):
        return [plain / scale]
    return [plain / scale, plain] if in_backward else [plain]


def alike(x: float, y: float) -> bool:
    return x == y or (min(x, y) > 0 and abs(x - y) <= PARTED * max(x, y))


def parts(a: Line, b: Line, scales: tuple[float, float] = (1.0, 1.0)) -> str | None:
    if bool(bad(a)) != bool(bad(b)):
        return f"{bad(a)} and {bad(b)} that are not finite"
    if a["elements"] != b["elements"]:
        return f"elements: {a['elements']} and {b['elements']}"
    pairs = list(zip(readings(a, scales[0]), readings(b, scales[1])))
    if not pairs or any(alike(x, y) for x, y in pairs):
        return None
    (x, y), without = pairs[0], " without the loss scale" if pairs[0] != (rms(a), rms(b)) else ""
    return f"root mean square {x:.4g} and {y:.4g}{without}"


def scales_of(training: Training) -> dict[int, float]:
    """Returns the loss scale in the gradients of each bracket."""
    return {line["n"]: line["scale"] for line in training.brackets if line["scale"]}


def first_of(a: Subject, b: Subject, order: int, scales: tuple[dict[int, float], dict[int, float]]) -> Parting | None:
    others = {shot["n"]: shot for shot in b.shots}
    for shot in a.shots:
        n, other = shot["n"], others.get(shot["n"])
        how = parts(shot, other, (scales[0].get(n, 1.0), scales[1].get(n, 1.0))) if other else None
        if how:
            return Parting(shot["n"], a.label, how, order)
    return None


def partings(a: Training, b: Training) -> tuple[list[Parting], int]:
    """Returns the differences in iterations that both observed, earliest first, and the number of values compared.
    Scaled gradients are compared without the loss scale."""
    of_b = {subject.key: subject for subject in subjects_of(b)}
    both = [(x, of_b[x.key]) for x in subjects_of(a) if x.key in of_b]
    scales = scales_of(a), scales_of(b)
    found = [first_of(x, y, order, scales) for order, (x, y) in enumerate(both)]
    return sorted((p for p in found if p), key=lambda p: (p.n, p.order)), len(both)


def first_decision(a: Training, b: Training) -> Parting | None:
    """Returns the first bracket with a step in one training and a skip in the other."""
    others = {line["n"]: line["action"] for line in b.brackets}
    for line in a.brackets:
        other = others.get(line["n"])
        if other and other != line["action"]:
            return Parting(line["n"], "the step", f"{line['action']} and {other}", -1)
    return None
