# SPDX-License-Identifier: Apache-2.0
"""Facts from the lines of a training: each observed value, the loss scale, memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .read import Line, Training


# By exponents: normal numbers from `normal` on, nonzero results of rounding from `least` on, all below `end`.
@dataclass(frozen=True)
class Window:
    name: str
    least: int
    normal: int
    end: int


FP16 = Window("fp16", -25, -14, 16)
BF16 = Window("bf16", -134, -126, 128)
SCALES = range(0, 25)  # 2^0 … 2^24

WORDS = {
    "input": "input",
    "output": "output",
    "weight": "weight",
    "scaled": "gradient, scaled",
    "gradient": "gradient",
    "master": "FP32 master",
    "update": "update",
}


@dataclass
class Lost:
    """Counts of finite nonzero elements that a cast would change."""

    zeros: int = 0
    subnormals: int = 0
    infinities: int = 0

    def add(self, counts: list[int]) -> None:
        self.zeros += counts[0]
        self.subnormals += counts[1]
        self.infinities += counts[2]


@dataclass
class Subject:
    """An argument of an op, or a parameter, in each observed iteration."""

    what: str
    op: str | None
    index: int
    name: str
    shots: list[Line] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str | None, int, str]:
        return self.what, self.op, self.index, self.name

    @property
    def label(self) -> str:
        word = WORDS.get(self.what, self.what)
        if self.op is None:
            return f"{self.name}: {word}"
        place = f"{self.op}#{self.index + 1}" if self.index else self.op
        return f"{place}: {word}" + ("" if self.name in (word, "return") else f" {self.name}")

    @property
    def type(self) -> str:
        return str(self.shots[-1]["type"])

    @property
    def line(self) -> str | None:
        """Returns the line of the program that calls the op, if the host named it."""
        return self.shots[-1].get("line")

    @property
    def is_tensor(self) -> bool:
        """Returns False for a number by value, as an epsilon."""
        return bool(self.shots[-1]["elements"] > self.shots[-1]["tensors"])

    def total(self, name: str) -> int:
        return sum(shot.get(name) or 0 for shot in self.shots)

    @property
    def nonfinite(self) -> int:
        return self.total("nans") + self.total("plus_infinities") + self.total("minus_infinities")

    @property
    def numbers(self) -> int:
        """Returns the number of finite nonzero elements."""
        return self.total("elements") - self.total("zeros") - self.nonfinite

    @property
    def largest(self) -> float:
        return max((shot.get("largest") or 0.0 for shot in self.shots), default=0.0)

    @property
    def least(self) -> float:
        return min((shot["least"] for shot in self.shots if shot.get("least")), default=0.0)

    def lost(self, type_name: str) -> Lost:
        lost = Lost()
        for shot in self.shots:
            lost.add(shot.get(type_name) or [0, 0, 0])
        return lost

    def binades(self) -> dict[int, int]:
        return add_binades(self.shots)

    def summed(self, name: str, length: int) -> list[int]:
        """Returns the sums of a list of counts over all shots."""
        lists = [shot[name] for shot in self.shots if name in shot]
        return [sum(each) for each in zip(*lists)] if lists else [0] * length


def counted(count: int, noun: str) -> str:
    """As in libamp/_words.py: this package also runs from the tree, without libamp around it (tools/demo)."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def add_binades(shots: Iterable[Line]) -> dict[int, int]:
    """Returns the sum of the histograms of exponents."""
    total: dict[int, int] = {}
    for shot in shots:
        for at, count in enumerate(shot["binades"], shot["first"]):
            if count:
                total[at] = total.get(at, 0) + count
    return total


def lost_at(binades: dict[int, int], window: Window, exponent: int) -> Lost:
    """Returns the losses at a scale of 2^exponent, from binades: elements that rounding moves into the next one are
    missed."""
    lost = Lost()
    for at, count in binades.items():
        if at + exponent < window.least:
            lost.zeros += count
        elif at + exponent < window.normal:
            lost.subnormals += count
        elif at + exponent >= window.end:
            lost.infinities += count
    return lost


def subjects_of(training: Training) -> list[Subject]:
    """Returns the subjects in the order in which they first appear. For ops that is the order of execution."""
    found: dict[tuple[str, str | None, int, str], Subject] = {}
    for line in training.seen:
        subject = Subject(line["what"], line.get("op"), line["index"], line["name"])
        found.setdefault(subject.key, subject).shots.append(line)
    return list(found.values())


@dataclass
class Outline:
    level: str
    type: str
    brackets: int
    skipped: int
    observed: int
    scale: float | None  # the last one
    whole: bool  # each bracket has a line


def outline_of(training: Training) -> Outline:
    start, end = training.start or {}, training.end
    brackets = max([line["n"] for line in training.brackets], default=0)
    skips = sum(line["action"] == "skip" for line in training.brackets)
    last = training.brackets[-1] if training.brackets else start
    return Outline(
        level=start.get("level", "?"),
        type=start.get("type", "?"),
        brackets=end["brackets"] if end else brackets,
        skipped=end["skipped"] if end else skips,
        observed=len({line["n"] for line in training.seen}),
        scale=last.get("next", last.get("scale")),
        whole=not any(line["left_out"] for line in training.brackets),
    )


def gradients_of(subjects: list[Subject]) -> dict[int, int]:
    """Returns the histogram of unscaled gradients over all parameters."""
    return add_binades(shot for subject in subjects if subject.what == "gradient" for shot in subject.shots)


def best_scale(binades: dict[int, int], window: Window = FP16) -> int | None:
    """Returns the exponent of the greatest loss scale without an infinity, None without gradients."""
    return window.end - 1 - max(binades) if binades else None


# ---- FP8, as a dry run ----

FP8_PART = 20  # one element in so many may become 0
FP8_HEAD = ["input of a product", "E4M3: to 0", "subnormal", "E5M2: to 0", "subnormal", "MXFP8 E4M3: to 0", "saturated",
            "MXFP8 E5M2: to 0", ""]  # fmt: skip


class FP8(NamedTuple):
    """An input of a product, cast to FP8 at the best scale of each observed iteration."""

    subject: Subject
    stays: bool  # too much of it would become 0: E4M3, in backward E5M2
    zeros: float  # this part of its nonzero elements
    cells: list[str]


def fp8_of(subject: Subject) -> FP8:
    e4m3, e5m2 = subject.summed("e4m3", 2), subject.summed("e5m2", 2)
    blocks, numbers = subject.summed("mxfp8", 7), subject.numbers
    zeros = (e5m2 if subject.shots[-1].get("in_backward") else e4m3)[0]
    sampled = [share(blocks[i], blocks[0]) if blocks[0] else "-" for i in (1, 3, 4)]
    cells = [share(count, numbers) for count in (*e4m3, *e5m2)]
    stays = FP8_PART * zeros > numbers
    return FP8(subject, stays, zeros / numbers, [subject.label, *cells, *sampled, "stays" if stays else "fits"])


def fp8_rows(training: Training) -> list[FP8]:
    """Returns the inputs of products, those that lose most first."""
    inputs = [s for s in subjects_of(training) if s.shots[-1].get("product") and s.numbers and s.is_tensor]
    return sorted(map(fp8_of, inputs), key=lambda row: (not row.stays, -row.zeros))


def fp8_answer(rows: list[FP8]) -> str:
    """Answers: would this model train in FP8?"""
    staying = [row for row in rows if row.stays]
    if not staying:
        return f"All observed inputs of products fit ({len(rows)}): nothing would have to stay in 16 bits."
    names = [f"{row.subject.label} ({share(round(1e6 * row.zeros), 1000000)} to 0)" for row in staying[:5]]
    more = f" and {len(staying) - 5} more" if len(staying) > 5 else ""
    return f"{len(staying)} of {len(rows)} inputs of products would have to stay in 16 bits: {', '.join(names)}{more}."


class Bytes(NamedTuple):
    """Memory that a training uses."""

    level: str
    weights: int
    gradients: int
    masters: int
    master_gradients: int = 0
    moments: int = 0
    most_casts: int = 0
    outputs: int = 0
    packed_from: int = 0
    packed: int = 0
    masters_split: int = 0
    moments_8bit: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.masters + self.master_gradients + self.moments + self.most_casts


def bytes_of(name: str, line: Line) -> Bytes:
    return Bytes(name, *(line.get(field, 0) for field in Bytes._fields[1:]))


def memory_of(training: Training) -> list[Bytes]:
    """Returns the memory of the parameters in FP32, of this training as measured, and of each level as a survey
    predicts."""
    if not training.wired:
        return []
    elements, low = training.wired["elements"], training.wired["low"]
    trained, masters = training.wired["trained"], training.wired["masters"]
    level = (training.start or {}).get("level", "?")
    rows = [Bytes("FP32", 4 * elements, 4 * trained, 0)]
    if training.memory:
        most = max(line["outputs"] for line in training.memory)
        rows.append(bytes_of(f"{level}, measured", training.memory[-1])._replace(outputs=most))
    elif low:
        rows.append(Bytes(level, 4 * elements - 2 * low, 4 * trained - 2 * min(low, trained), 4 * masters))
    levels = training.survey["levels"] if training.survey else []
    return rows + [bytes_of(f"{each['level']}, predicted", each) for each in levels if each["level"] != level]


MEMORY_HEAD = ["weights", "gradients", "masters", "their gradients", "moments", "casts", "together", "outputs of ops",
               "saved for backward"]


def memory_rows(training: Training) -> list[list[str]]:
    """Returns the rows under MEMORY_HEAD, each after its name."""
    rows = memory_of(training)
    return [
        [
            m.level,
            *map(size, (*m[1:7], m.total)),
            size(m.outputs) if m.outputs else "-",
            f"{size(m.packed_from)} packed to {size(m.packed)}" if m.packed else "-",
        ]
        for m in rows
    ]


# ---- numbers in words ----


def power(x: float | None) -> str:
    """Returns a power of two as 2^k, other numbers as they are."""
    if x is None:
        return "-"
    if x > 0 and math.isfinite(x) and abs(math.frexp(x)[0] % 0.5) < 1e-8:  # a trace has nine digits of FP32
        k = round(math.log2(x))
        if abs(k) > 6:
            return f"2^{k}"
    return f"{x:.4g}"


def share(part: int, whole: int) -> str:
    if not part or not whole:
        return "0"
    percent = 100 * part / whole
    return "< 0.01 %" if percent < 0.01 else "> 99.99 %" if 99.99 < percent < 100 else f"{percent:.3g} %"


def size(count: int) -> str:
    """Returns bytes with a unit. tools/demo runs the report without the package, so this does not use _html's."""
    x, unit = float(count), 0
    while x >= 1024 and unit < 4:
        x, unit = x / 1024, unit + 1
    return f"{x:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
