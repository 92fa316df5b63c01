# SPDX-License-Identifier: Apache-2.0
"""The result of a run: judged on each rank, written to a file, merged by the first rank, printed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterable
from typing import Any

from ... import _doctor_findings
from ..._findings import Place
from ..._words import counted
from . import watch
from .checks import CHECKS, early_steps, unjudged
from .watch import Found, Run

NOTHING = 2  # status of a run in which nothing could be looked at
WAIT = 10.0  # seconds that the first rank waits for the files of the others


@dataclasses.dataclass(repr=False)
class Result:
    """What the doctor says of a run: of one process, or of all ranks."""

    run: Run  # of this process, or of the first rank that looked at something
    found: list[Found]
    libamp: int = 0  # findings of libamp's own sessions, whose reports are in run.libamp
    ranks: list[int] = dataclasses.field(default_factory=list)  # that have told
    missing: list[int] = dataclasses.field(default_factory=list)  # that have not, within the limit

    @property
    def looked(self) -> bool:
        """Whether there was something to look at."""
        return bool(self.run.looked or self.run.libamp or self.found)

    def status(self, strict: bool = False) -> int:
        """Returns 2 if nothing was looked at, with strict 1 if there are findings, else 0. Advice about speed is no
        finding here."""
        if not self.looked:
            return NOTHING
        faults = [each for each in self.found if not _doctor_findings.is_advice(each.code)]
        return 1 if strict and (faults or self.libamp) else 0

    def verdict(self) -> str:
        """Returns the result in a sentence."""
        run = self.run
        if not self.looked:
            return "looked at nothing: " + why_nothing(run)
        advice = sum(_doctor_findings.is_advice(each.code) for each in self.found)
        number = len(self.found) - advice + self.libamp
        count = counted(number, "finding") if number else "no finding"
        count += f" (and advice about speed: {advice})" if advice else ""
        trained = sum(param.trained for param in run.params)
        steps = sum(optimizer.tried for optimizer in run.optimizers)
        return f"{count} in {counted(steps, 'step')} of {counted(trained, 'parameter')}" if steps else count

    def __repr__(self) -> str:
        """Returns the verdict and a short line for each finding, for a notebook."""
        lines = [f"<libamp.doctor: {self.verdict()}"]
        for each in self.found:
            at = f", {os.path.basename(each.place.filename)}:{each.place.lineno}" if each.place.filename else ""
            of = f" ({each.subject}{at})" if each.subject else ""
            lines.append(f"  {each.code} {_doctor_findings.title(each.code)}{of}: {each.saw}")
        return "\n".join(lines) + ">"

    def data(self) -> dict[str, Any]:
        """Returns all as plain data, for JSON."""
        data = {
            "verdict": self.verdict(),
            "status": self.status(strict=True),
            "findings": [self._row(each) for each in self.found],
            "unjudged": unjudged(self.run),
            "libamp_findings": self.libamp,
            "ranks": self.ranks,
            "missing_ranks": self.missing,
            "run": dataclasses.asdict(self.run),
        }
        plain: dict[str, Any] = _plain(data)
        return plain

    def _row(self, found: Found) -> dict[str, Any]:
        words = {"title": _doctor_findings.title(found.code), "why": _doctor_findings.reason(found.code)}
        return dataclasses.asdict(found) | words | {"remedy": _doctor_findings.remedy(found.code, self.framework())}

    def framework(self) -> str:
        """Returns the framework of the remedies: the outermost one that the script uses."""
        used = {"pytorch_lightning": "lightning", "apex": "libamp"}
        names = [used.get(name, name) for name in self.run.frameworks] + ["libamp"] * bool(self.run.libamp)
        for name in ("transformers", "lightning", "accelerate", "libamp"):
            if name in names:
                return name
        return "torch"

    def text(self) -> str:
        """Returns the lines for the console."""
        run = self.run
        lines = [f"libamp.doctor: {self.verdict()}"]
        for each in self.found:
            at = f"{_short(each.place.filename)}:{each.place.lineno}: " if each.place.filename else ""
            of = f" ({each.subject})" if each.subject else ""
            where = f" [ranks {', '.join(map(str, each.ranks))}]" if each.ranks and len(self.ranks) > 1 else ""
            mend = _doctor_findings.remedy(each.code, self.framework())
            lines.append(f"{at}{each.code} {_doctor_findings.title(each.code)}{of}: {each.saw}{where}: {mend}")
        lines += run.libamp
        lines += [f"not seen: {sentence}" for sentence in run.unseen]
        lines += [f"not judged: {sentence}" for sentence in unjudged(run)]
        if self.missing:
            late = ", ".join(map(str, self.missing))
            lines.append(f"not seen: ranks {late} wrote nothing within {WAIT:g} s of the end of the first rank")
        if run.seconds and run.looked:
            watched = f", {len(run.watched)} watched op by op" if run.watched else ""
            looks, steps = (sum(getattr(each, name) for each in run.optimizers) for name in ("looks", "tried"))
            seconds = f"in {run.spent:.2f} s of {run.seconds:.2f} s"
            lines.append(f"looked at {looks} of {counted(steps, 'step')}{watched}, {seconds}")
        return "\n".join(lines) + "\n"


def _short(path: str) -> str:
    """Returns a path below the working folder without it."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def why_nothing(run: Run) -> str:
    """Says why nothing was looked at, and what to do."""
    if not run.torch:
        return "the script did not import torch"
    if run.compiled_before and not run.optimizers:
        return early_steps(run)
    if run.compiled and not run.optimizers:
        return "no step was seen, and torch.compile was used: leave optimizer.step() outside of the compiled function"
    if not run.optimizers:
        words = "no step of a torch.optim.Optimizer ran in this process"
        return words + (f", and {counted(run.backwards, 'backward')} did" if run.backwards else "")
    return "no parameter of an optimizer could be sampled" + (f": {run.unseen[0]}" if run.unseen else "")


def judge(run: Run) -> list[Found]:
    """Returns the findings of a record, faults before advice. A check that fails is a sentence of run.unseen."""
    found: list[Found] = []
    for check in CHECKS:
        try:
            found += check(run)
        except Exception as error:
            run.unseen.append(f"the doctor's own error in {check.__name__}: {type(error).__name__}: {error}")
    return sorted(found, key=lambda each: _doctor_findings.is_advice(each.code))


# ---- files of ranks ----


def path_of(folder: str, name: str) -> str:
    return os.path.join(folder, f"libamp-doctor-{name}.json")


def write(result: Result, path: str) -> None:
    """Writes a result. A reader finds all of it or nothing. Devices and pipes stay what they are."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    special = os.path.exists(path) and not os.path.isfile(path)
    part = path if special else f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(result.data(), file, indent=1)
        file.write("\n")
    if not special:
        os.replace(part, path)


def read(path: str) -> Result:
    """Reads a result."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    known = {field.name for field in dataclasses.fields(Found)}
    found = []
    for row in data["findings"]:
        values = {key: value for key, value in row.items() if key in known}
        found.append(Found(**values | {"place": Place(*row["place"]), "ranks": tuple(row["ranks"])}))
    return Result(restored(data["run"]), found, data["libamp_findings"], data["ranks"], data["missing_ranks"])


def restored(data: dict[str, Any]) -> Run:
    """Returns the record of its plain data."""
    return _restored(Run, data)


def _restored(kind: Any, data: dict[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            values[field.name] = _value(str(field.type), data[field.name])
    return kind(**values)


def _value(kind: str, value: Any) -> Any:
    inner = getattr(watch, kind.removeprefix("list[").removesuffix("]"), None)
    if kind == "Place":
        return Place(*value)
    if kind == "float":
        return float(value)  # "nan" too
    if isinstance(value, list) and dataclasses.is_dataclass(inner):
        return [_restored(inner, each) for each in value]
    if kind.startswith("tuple"):
        return tuple(value)
    return [tuple(each) for each in value] if "tuple[" in kind else value


def _plain(value: Any) -> Any:
    """Returns data with words for the numbers that JSON does not have: "nan", "inf", "-inf"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def merge(results: Iterable[Result], expected: Iterable[int] = ()) -> Result:
    """Returns one result of several ranks. A finding that several have stands once, with its worst number."""
    listed = sorted(results, key=lambda result: result.ranks or [0])
    whole = next((result for result in listed if result.run.looked), listed[0])
    found: dict[tuple[str, str], Found] = {}
    for result in listed:
        for each in result.found:
            key = (each.code, each.subject)
            before = found.get(key, each)
            worse = each if each.number > before.number else before
            ranks = (*found[key].ranks, *result.ranks) if key in found else tuple(result.ranks)
            found[key] = dataclasses.replace(worse, ranks=ranks)
    ordered = sorted(found.values(), key=lambda each: _doctor_findings.is_advice(each.code))
    told = sorted({rank for result in listed for rank in result.ranks})
    unseen = [sentence for result in listed for sentence in result.run.unseen]
    whole.run.unseen = list(dict.fromkeys(unseen))
    whole.run.libamp = [text for result in listed for text in result.run.libamp]
    missing = sorted(set(expected) - set(told))
    return Result(whole.run, ordered, sum(result.libamp for result in listed), told, missing)


def gather(folder: str, ranks: Iterable[int], wait: float = WAIT) -> list[Result]:
    """Returns the results of all ranks that wrote one within the limit."""
    end = time.monotonic() + wait
    paths = [path_of(folder, f"rank-{rank}") for rank in ranks]
    while not all(os.path.exists(path) for path in paths) and time.monotonic() < end:
        time.sleep(0.02)
    return [read(path) for path in paths if os.path.exists(path)]
