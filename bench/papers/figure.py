# SPDX-License-Identifier: Apache-2.0
"""The parts of a figure's module.

    FIGURE = Figure("masters", "FP32 masters", Source(...), seconds=100, quick=20)

    def measure(budget: Budget) -> Data       numbers alone, as JSON: all that picture and page show
    def words(data: Data) -> str              Markdown of the page: sentences and tables, from these numbers
    def draw(data: Data) -> dict[str, str]    SVG by file name: "masters.svg", more as "masters-NAME.svg"

`measure` returns at least `seeds` and `steps`. It watches `budget.left()`, and says in `stopped` what it omitted.
run.py adds PROVENANCE.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Data = dict[str, Any]

PAPER = "[Micikevicius et al., *Mixed Precision Training*](https://arxiv.org/abs/1710.03740)"

# Members of a figure's JSON beside those of its measure: run.py writes them.
PROVENANCE = ("figure", "title", "published", "machine", "date", "commit", "device", "quick", "seconds", "versions")


@dataclass(frozen=True)
class Source:
    """The published figure. words: in a sentence or two. numbers: those that the page compares, by name. reference:
    authors, title, year, and where it can be read."""

    words: str
    numbers: dict[str, float | str]
    reference: str


@dataclass(frozen=True)
class Figure:
    """name: of the module and of its files. seconds, quick, cuda: its shares of a whole run, of `--quick` and of
    `--device cuda`. slow: of `--slow`, whose file a whole run keeps. 0: it has no part in it."""

    name: str
    title: str
    source: Source
    seconds: int
    quick: int
    cuda: int = 0
    slow: int = 0

    def share(self, device: str, quick: bool) -> int:
        """Returns the seconds that this figure may take."""
        return (min(self.quick, self.cuda) if quick else self.cuda) if device == "cuda" else (
            self.quick if quick else self.seconds)


def processor_or_wall(device: str) -> float:
    """Returns seconds of the processor, which a busy machine does not stretch, with those of programs that have ended,
    or of the clock while a GPU works."""
    return time.monotonic() if device == "cuda" else sum(os.times()[:4])


@dataclass
class Budget:
    """The time that a measurement may take. quick: the fewest steps and seeds that still show the effect. slow: as many
    as the published figure has, and the result says so in `slow`. part: of all steps, for tests."""

    seconds: float
    quick: bool = False
    device: str = "cpu"
    slow: bool = False
    part: float = 1.0

    def __post_init__(self) -> None:
        self.began = processor_or_wall(self.device)

    def steps(self, whole: int, quick: int) -> int:
        """Returns the number of steps of a training, 2 at least."""
        return max(2, round(self.part * (quick if self.quick else whole)))

    def used(self) -> float:
        return processor_or_wall(self.device) - self.began

    def left(self) -> float:
        """Returns the seconds that remain, negative if there are none."""
        return self.seconds - self.used()


class Module(Protocol):
    """A figure's module."""

    FIGURE: Figure

    def measure(self, budget: Budget) -> Data: ...

    def words(self, data: Data) -> str: ...

    def draw(self, data: Data) -> dict[str, str]: ...


def over_seeds(budget: Budget, seeds: list[int], names: Iterable[str], train: Callable[[str, int], Data]) -> Data:
    """Trains with each name and seed, seed by seed. Returns `runs` by name, the `seeds` that fitted the budget, and in
    `stopped` what did not."""
    runs: dict[str, list[Data]] = {name: [] for name in names}
    longest = 0.0
    for done, seed in enumerate(seeds):
        if done and budget.left() < longest:
            return {"runs": runs, "seeds": seeds[:done], "stopped": f"{done} of {len(seeds)} seeds"}
        before = budget.left()
        for name in runs:
            runs[name].append(train(name, seed))
        longest = max(longest, before - budget.left())
    return {"runs": runs, "seeds": seeds, "stopped": ""}


def table(head: list[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table in Markdown: numbers to the right, words of the first column to the left."""
    lines: list[Sequence[object]] = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def spread(values: list[float], digits: int = 1, unit: str = "") -> str:
    """Returns the mean with the least and the greatest value, "nan" where one is None."""
    if any(value is None for value in values):
        return "not finite"
    middle = f"{mean(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"
