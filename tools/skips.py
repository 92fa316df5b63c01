#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The skips that tools/test --strict allows: the rows of tests/skips.txt. Any other skip is a failure, and so is a row
that allowed nothing.

    skips.py allowed LIST STAGE WORD...    status 0: the list allows the skip "WORD...", printed as "NAME: REASON"
    skips.py idle LIST                     prints the rows whose conditions held in a stage and that no skip needed

A row is "CONDITION... | NAME: REASON"; * in NAME and REASON matches any text. A row holds if all its conditions do. A
condition is a key of CONDITIONS or "stage", with its argument after a colon; "!" negates it. Each stage appends a line
"used ROW" or "idle ROW" to build/skips for each row that held.
"""
import ctypes.util
import functools
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

NOTES = pathlib.Path(__file__).resolve().parent.parent / "build" / "skips"
TOOLKITS = os.pathsep.join(["/usr/local/cuda/bin", "/opt/cuda/bin"])


@functools.lru_cache(maxsize=None)
def runs(*command):
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def has_module(name):
    """In the Python that runs the stage's tests: AMP_STAGE_PYTHON, else this one."""
    python = os.environ.get("AMP_STAGE_PYTHON")
    if not python:
        return importlib.util.find_spec(name) is not None
    return runs(python, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)")


def cpu_has(flag):
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        return re.search(rf"^flags\s*:.*\b{flag}\b", info.read(), re.MULTILINE) is not None


CONDITIONS = {
    "gpu": lambda: runs("nvidia-smi"),
    "slow": lambda: os.environ.get("AMP_SLOW") == "true",
    "short": lambda: bool(os.environ.get("AMP_TEST_SHORT")),
    "given": lambda setting: os.environ.get(setting.partition("=")[0]) == setting.partition("=")[2],
    "root": lambda: os.geteuid() == 0,
    "mounts": lambda: runs("unshare", "--mount", "--pid", "--mount-proc", "--fork", "true"),
    "machine": lambda name: platform.machine() == name,
    "cpu": cpu_has,
    "file": os.path.exists,
    "built": lambda path: (NOTES.parent / path).exists(),
    "library": lambda name: ctypes.util.find_library(name) is not None,
    "module": has_module,
    "program": lambda name: bool(shutil.which(name) or shutil.which(name, path=TOOLKITS)),
}


def holds(condition, stage):
    name, _, argument = condition.lstrip("!").partition(":")
    value = argument == stage if name == "stage" else CONDITIONS[name](*[argument] if argument else [])
    return value != condition.startswith("!")


class Row:
    def __init__(self, path, number, line):
        conditions, bar, what = line.partition(" | ")
        self.place, self.what, self.conditions, self.used = f"{path}:{number}", what.strip(), conditions.split(), False
        if not bar or not self.conditions or ": " not in self.what:
            sys.exit(f"{self.place}: a row is 'CONDITION... | NAME: REASON', and this is '{line}'")
        for condition in self.conditions:
            if condition.lstrip("!").partition(":")[0] not in [*CONDITIONS, "stage"]:
                sys.exit(f"{self.place}: there is no condition '{condition}': tools/skips.py has them")
        self.pattern = re.compile(".*".join(map(re.escape, self.what.split("*"))), re.DOTALL)


class Skips:
    """The rows of a list that hold in one stage."""

    def __init__(self, path, stage):
        lines = enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1)
        rows = [Row(path, number, line) for number, line in lines if line.strip() and not line.startswith("#")]
        self.rows = [row for row in rows if all(holds(condition, stage) for condition in row.conditions)]

    def allow(self, text):
        fitting = [row for row in self.rows if row.pattern.fullmatch(text)]
        for row in fitting:
            row.used = True
        return bool(fitting)

    def note(self):
        NOTES.parent.mkdir(exist_ok=True)
        with open(NOTES, "a", encoding="utf-8") as notes:
            notes.writelines(f"{'used' if row.used else 'idle'} {row.place}: {row.what}\n" for row in self.rows)


def idle():
    """The rows that no stage used, though one could have."""
    notes = [line.split(" ", 1) for line in NOTES.read_text(encoding="utf-8").splitlines()]
    used = {row for state, row in notes if state == "used"}
    return list(dict.fromkeys(row for state, row in notes if row not in used))


def main():
    command, *rest = sys.argv[1:]
    if command == "allowed":
        path, stage, *words = rest
        skips = Skips(path, stage)
        allowed = skips.allow(" ".join(words))
        skips.note()
        return 0 if allowed else 1
    rows = idle()
    for row in rows:
        print(f"   FAILED  {row}: a row that allowed nothing: delete it, or say when it holds")
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
