# SPDX-License-Identifier: Apache-2.0
"""Reads a trace (docs/reference/trace.md) line by line. An unreadable line is reported by number, the rest is kept."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MANY = 4096  # binades: double has 2,098
FLOAT_MAX = sys.float_info.max
Line = dict[str, Any]


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Types of members by name. NUMBERS and NULLABLE may be null. Unknown names are passed on.
COUNTS = words(
    """version models optimizers ops params elements trained low masters n loss index left_out zeros nans
    plus_infinities minus_infinities call calls passed casts cache_hits failures brackets skipped lost lost_fp16
    lost_bf16 nonfinite context fits advice weights gradients outputs master_gradients moments casts most_casts of
    iterations packed_from packed masters_split moments_8bit since since_least"""
)
NUMBERS = words("scale next largest least sum sum_squares init_scale value")
TEXTS = words("level type action what name as message class cause")
NULLABLE = words("op overflow parameter code status weight gate line about")
LISTS = {"fp16": 3, "bf16": 3, "e4m3": 2, "e5m2": 2, "mxfp8": 7, "binades": MANY}  # lengths
SURVEYED = words("level fits advice weights gradients masters outputs")
MEMBERS = {  # required members of a line, by kind
    "start": words("version level type scale"),
    "wired": words("ops params elements trained low masters"),
    "bracket": words("n loss action scale next overflow left_out"),
    "seen": words(
        """n what op index name type elements zeros nans plus_infinities minus_infinities largest least sum_squares
        first binades"""
    ),
    "memory": words("n weights gradients masters master_gradients moments casts most_casts outputs"),
    "call": words("n call op index arguments"),
    "culprit": words("n call op index parameter arguments"),
    "told": words("n as code message"),
    "advice": words("code op index name levels message"),
    "survey": words("level init_scale iterations levels"),
    "op": words("name index class calls passed casts cache_hits failures"),
    "end": words("brackets skipped left_out lost"),
}


@dataclass
class Training:
    """The lines of one context by kind, in order."""

    context: int
    start: Line | None = None
    wired: Line | None = None
    survey: Line | None = None
    end: Line | None = None
    brackets: list[Line] = field(default_factory=list)
    seen: list[Line] = field(default_factory=list)
    memory: list[Line] = field(default_factory=list)
    calls: list[Line] = field(default_factory=list)
    culprits: list[Line] = field(default_factory=list)
    told: list[Line] = field(default_factory=list)
    advice: list[Line] = field(default_factory=list)
    ops: list[Line] = field(default_factory=list)

    def add(self, line: Line) -> None:
        kind = line["kind"]
        if kind == "advice" and self.survey:  # of another survey
            self.advice, self.survey = [], None
        if kind in ("start", "wired", "survey", "end"):
            setattr(self, kind, line)
        else:
            lists = {"bracket": self.brackets, "seen": self.seen, "memory": self.memory, "call": self.calls}
            lists |= {"culprit": self.culprits, "told": self.told, "advice": self.advice, "op": self.ops}
            lists[kind].append(line)


@dataclass
class Trace:
    name: str
    trainings: list[Training]
    problems: list[str]  # messages about unreadable lines, each with the line's number first


class Unreadable(Exception):
    """The trace has nothing to show. The text gives the reason."""


def read(path: str) -> Trace:
    """Reads a trace. Raises OSError if there is no such file, Unreadable if no line belongs to a trace."""
    trainings: dict[int, Training] = {}
    problems: list[str] = []
    with open(path, "rb") as file:
        number = 0
        for number, raw in enumerate(file, 1):
            try:
                line = parse(raw)
            except ValueError as error:
                problems.append(f"line {number}: {error}")
                continue
            trainings.setdefault(line["context"], Training(line["context"])).add(line)
    kept = [training for training in trainings.values() if training.brackets or training.seen or training.told]
    if not trainings:
        raise Unreadable(f"{path}: " + ("it is empty" if not number else f"not a libamp trace: {problems[0]}"))
    for training in kept:
        if training.end is None:
            end = "amp.shutdown" if (training.wired or {}).get("language") == "python" else "amp_shutdown"
            problems.append(
                f"line {number}: the end of context {training.context} is missing: that training did not reach {end}, "
                "or its trace was full"
            )
    return Trace(path, kept or list(trainings.values())[-1:], problems)


def parse(raw: bytes) -> Line:
    """Parses a line. Raises ValueError with the reason if it is wrong."""
    cut = "" if raw.endswith(b"\n") else ", and the file ends in it"
    try:
        line = json.loads(raw.decode("utf-8", "replace"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        text = (
            f"not JSON ({error.msg}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else "not JSON"
        )
        raise ValueError(text + cut) from None
    if not isinstance(line, dict):
        raise ValueError("not an object")
    kind = line.get("kind")
    if not isinstance(kind, str) or kind not in MEMBERS:
        raise ValueError(f"kind is {json.dumps(kind)}, which a trace of version {VERSION} has not")
    for name in ("context", *MEMBERS[kind]):
        if name not in line:
            raise ValueError(f"{kind} has no {name}")
    check(kind, line)
    return line


def refuse_constant(text: str) -> None:
    raise ValueError(text)


def check(kind: str, line: Line) -> None:
    for name, value in line.items():
        if not fits(name, value) and not (kind == "advice" and name == "name" and value is None):
            raise ValueError(f"{kind} has {name} {json.dumps(value)[:40]}")
    if kind == "start" and line["version"] != VERSION:
        raise ValueError(f"version {line['version']}: this libamp.report reads version {VERSION}")
    for argument in line.get("arguments", []):
        if not isinstance(argument, dict) or "name" not in argument:
            raise ValueError(f"{kind} has an argument that is none")
        check(kind, argument)
    for level in line["levels"] if kind in ("advice", "survey") else []:
        if kind == "advice" and isinstance(level, str):
            continue
        if kind == "advice" or not isinstance(level, dict) or not set(SURVEYED) <= set(level):
            raise ValueError(f"{kind} has a level that is none")
        check("level", level)


def fits(name: str, value: object) -> bool:
    if name in COUNTS:
        return is_count(value)
    if name in NUMBERS:
        return value is None or ((type(value) is float or type(value) is int) and abs(value) <= FLOAT_MAX)
    if name in TEXTS:
        return isinstance(value, str)
    if name in NULLABLE:
        return value is None or isinstance(value, str)
    if name in LISTS:
        if not isinstance(value, list) or not all(map(is_count, value)):
            return False
        return len(value) <= MANY if name == "binades" else len(value) == LISTS[name]
    if name in ("in_backward", "product"):
        return isinstance(value, bool)
    if name == "first":
        return type(value) is int and abs(value) <= MANY
    return name not in ("arguments", "levels") or isinstance(value, list)


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64
