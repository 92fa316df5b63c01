# SPDX-License-Identifier: Apache-2.0
"""The speed figures: lines of the groups that tools/bench measures, with peers of this Python."""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from ..figure import Budget, Data

ROOT = pathlib.Path(__file__).resolve().parents[3]
PYTHON = ROOT / "bench" / "python"
SETS = ("avx2", "avx512-bf16", "all")  # of bench/python/run.py --cpu


def ran(command: list[str], budget: Budget, **more: Any) -> None:
    """Its table goes to standard error, so that a reader of the log sees all lines."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=5 * budget.seconds,
                   **more)


def load() -> list[float]:
    return [round(each, 2) for each in os.getloadavg()]


def peers(names: tuple[str, ...]) -> Data:
    """Versions of packages; None for one that is not installed."""
    found: Data = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def lines_of(file: pathlib.Path) -> list[Data]:
    lines: list[Data] = json.loads(file.read_text(encoding="utf-8"))
    return lines


def result(packages: tuple[str, ...], before: list[float], lines: list[Data], rounds: int) -> Data:
    """seeds: the numbers are fixed. steps: rounds in turns."""
    return {"seeds": "none", "steps": rounds, "load": [before, load()], "peers": peers(packages), "lines": lines}


def c_group(group: str, packages: tuple[str, ...], budget: Budget) -> Data:
    """A group of the C library's, with peers: tools/bench --group GROUP --peers."""
    before = load()
    quick = ["--quick"] if budget.seconds < 300 else []
    ran([str(ROOT / "tools" / "bench"), *quick, "--json", "--group", group, "--peers", sys.executable], budget)
    lines = lines_of(ROOT / "build" / "bench" / "results.json")
    return result(packages, before, lines, 15 if quick else 61)


def python_group(group: str, packages: tuple[str, ...], budget: Budget) -> Data:
    """A group of bench/python, in a process for each set of instructions. quick: this machine's alone."""
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "lines.json"
        cpus = [word for name in SETS[2 * budget.quick :] for word in ("--cpu", name)]
        ran([sys.executable, str(PYTHON / "run.py"), "--quick", "--group", group, "--json", str(file), *cpus], budget)
        lines = lines_of(file)
    return result(packages, before, lines, 15)
