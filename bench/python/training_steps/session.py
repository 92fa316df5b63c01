# SPDX-License-Identifier: Apache-2.0
"""The order in which models and modes are measured, within a time. A file keeps each result as soon as it is there."""
import contextlib
import fnmatch
import gc
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any

import libamp
import torch
from libamp.torch import amp

from training_steps import report
from training_steps.gauges import gauge_of
from training_steps.models import Task, make
from training_steps.modes import EAGER, MODES, training

GUESS = {False: 4.0, True: 60.0}  # seconds that a piece takes, whether compiled, as long as none has been measured


def describe(device: str) -> dict[str, str]:
    said = {"python": platform.python_version(), "torch": torch.__version__, "libamp": libamp.__version__,
            "commit": os.environ.get("AMP_BENCH_COMMIT", ""), "cores": str(os.cpu_count())}
    if device == "cuda":
        said |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    for name in ("transformers", "torchvision"):
        with contextlib.suppress(ImportError):
            said[name] = __import__(name).__version__
    return said


def chosen(patterns: list[str], compiled: bool) -> list[str]:
    """Names of modes, in the order of MODES; without patterns all, the compiled ones where they are wanted."""
    if not patterns:
        return list(MODES if compiled else EAGER)
    nothing = [pattern for pattern in patterns if not fnmatch.filter(MODES, pattern)]
    if nothing:
        raise SystemExit(f"no mode is named {nothing[0]}: {', '.join(MODES)}")
    return [name for name in MODES if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


class Session:
    """Trains, and writes to state what it saw. deadline: of clock; nothing begins that would end behind it."""

    def __init__(self, state: dict[str, Any], file: pathlib.Path | None = None, *, deadline: float = float("inf"),
                 clock: Any = time.monotonic, gauge: Any = None, layers: int | None = None) -> None:
        self.state, self.file, self.deadline, self.clock, self.layers = state, file, deadline, clock, layers
        self.gauge = gauge or gauge_of(state["device"])
        self.tasks: dict[str, Task] = {}

    def save(self) -> None:
        if self.file is None:
            return
        other = self.file.with_suffix(".part")
        other.write_text(json.dumps(self.state, indent=1) + "\n", encoding="utf-8")
        other.replace(self.file)

    def run(self, models: list[str], modes: list[str], rounds: int) -> None:
        """Round by round the modes of the first turns; then the others once, the compiled ones last."""
        turns = [(str(r), turn) for r in range(rounds) for turn in (1, 2)] + [("0", 3), ("0", 4)]
        order = [(r, model, m) for r, turn in turns for model in models for m in modes if MODES[m].turn == turn]
        for number, model, mode in order:
            if number in self.state["results"].get(model, {}).get(mode, {}):
                continue  # by a process before this one
            name = f"{model} {mode}"
            if model in self.state["left_out"] or name in self.state["failed"]:
                continue
            if self.clock() + self.expected(model, mode) > self.deadline:
                if number == "0":
                    self.state["left_out"][name] = "there was no time for it"
                continue
            self.piece(number, model, mode)
        self.state["running"] = None
        self.save()

    def expected(self, model: str, mode: str) -> float:
        """Seconds: what it took before, or what others of this model take that are compiled as it is."""
        seconds, compiled = self.state["seconds"], MODES[mode].compiled
        modes = [name for name in MODES if MODES[name].compiled is compiled]
        alike = [seconds[f"{model} {name}"] for name in modes if f"{model} {name}" in seconds]
        return seconds.get(f"{model} {mode}") or (statistics.median(alike) if alike else GUESS[compiled])

    def piece(self, number: str, model: str, mode: str) -> None:
        name = f"{model} {mode}"
        self.state["running"] = name
        self.save()
        try:
            task, begin = self.task(model), self.clock()
            record = self.measured(task, mode)
        except ImportError as error:
            if model in self.tasks:
                self.failed(name, error)
            else:
                self.state["left_out"][model] = f"{error.name or error} is not there"
        except Exception as error:
            self.failed(name, error)
        else:
            self.state["results"].setdefault(model, {}).setdefault(mode, {})[number] = record
            self.state["seconds"][name] = self.clock() - begin
            print(f"round {number} {name}: {said(record)}", file=sys.stderr, flush=True)

    def task(self, model: str) -> Task:
        if model not in self.tasks:
            task = make(model, tiny=self.state["tiny"], layers=self.layers)
            self.tasks[model] = task
            self.state["sizes"][model] = task.size
        return self.tasks[model]

    def measured(self, task: Task, mode: str) -> dict[str, float | None]:
        if self.state["device"] == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        with training(task, MODES[mode], self.state["device"]) as step:
            return self.gauge.read(step, MODES[mode].compiled)

    def failed(self, name: str, error: Exception) -> None:
        self.state["failed"][name] = f"{type(error).__name__}: {str(error).strip()[:400]}"
        print(f"{name}: FAILED: {error!r}", file=sys.stderr, flush=True)
        error.__traceback__ = None  # the model and its activations
        with contextlib.suppress(Exception):
            amp.shutdown()
        if self.state["device"] == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception:
                self.save()
                print("the GPU no longer answers this process", file=sys.stderr, flush=True)
                raise SystemExit(report.LOST) from None


def said(record: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in record.items() if value is not None)
