# SPDX-License-Identifier: Apache-2.0
"""Measures the figures, each in a process of its own, and writes their JSON files, pictures and page. tools/results has
the options."""
from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import os
import pathlib
import platform
import subprocess
import sys
from typing import cast

from . import page
from .figure import PROVENANCE, Budget, Data, Module

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURES = (  # in the order of the page: modules of figures/
    "masters",
    "gradients",
    "detector",
    "recurrent",
    "gan",
    "rates",
    "resnet50",
    "memory",
    "activations",
    "adam",
    "products",
    "half",
    "long",
    "soak",
    "speed",
)
LATE, BUSY = 60, 5  # a measurement ends after so many seconds and times its budget: others use the machine, too


def modules(names: tuple[str, ...] = FIGURES) -> list[Module]:
    return [cast(Module, importlib.import_module(f".figures.{name}", __package__)) for name in names]


def machine() -> str:
    """Returns the processor and the number of cores that this process may use."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def measure(name: str, budget: Budget, file: pathlib.Path) -> None:
    """Measures one figure and writes its file."""
    import libamp
    import torch

    [module] = modules((name,))
    figure = module.FIGURE
    torch.set_num_threads(1)
    measured = module.measure(budget)
    seconds = budget.used()
    where = torch.cuda.get_device_name() if budget.device == "cuda" else machine()
    versions = {"libamp": libamp.__version__, "torch": str(torch.__version__), "Python": platform.python_version()}
    record: Data = dict(zip(PROVENANCE, (
        name, figure.title, dataclasses.asdict(figure.source), where,
        datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        os.environ.get("AMP_RESULTS_COMMIT") or "unknown", budget.device, budget.quick, round(seconds, 1), versions)))
    page.write_json(file, {**record, **measured})


def in_process(name: str, budget: Budget, file: pathlib.Path) -> bool:
    """Measures a figure in a process of its own. False, with the reason on standard error, if it fails."""
    command = [sys.executable, "-m", f"{__package__}.run", "--measure", name, "--seconds", str(budget.seconds),
               "--device", budget.device, "--out", str(file)]
    command += [f"--{name}" for name in ("quick", "slow") if getattr(budget, name)]
    print(f"{name}: {budget.seconds:.0f} s at most", flush=True)
    longest = LATE + BUSY * budget.seconds
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=longest).returncode
    except subprocess.TimeoutExpired:
        status = None
    if status != 0:
        why = f"status {status}" if status is not None else f"it did not end within {longest:.0f} s"
        print(f"tools/results: {name}: {why}; its older file stays", file=sys.stderr)
    return status == 0


def write(folder: pathlib.Path) -> None:
    """Writes pictures and page from the JSON files of a folder, into which the published figures are copied."""
    for module in modules():
        file = page.file_of(folder, module.FIGURE)
        if file.exists():
            told = {"title": module.FIGURE.title, "published": dataclasses.asdict(module.FIGURE.source)}
            page.write_json(file, {**page.read_json(file), **told})
    for name, text in page.files(modules(), folder).items():
        (folder / name).write_text(text, encoding="utf-8")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/results", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", choices=FIGURES, metavar="NAME")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--page", action="store_true", help="write pictures and page anew, measure nothing")
    parser.add_argument("--measure", choices=FIGURES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parsed(arguments)
    if args.measure:
        measure(args.measure, Budget(args.seconds, args.quick, args.device, args.slow), args.out)
        return 0
    kept = ROOT / "docs" / "results" if not args.quick and args.device == "cpu" else ROOT / "build" / "results"
    folder: pathlib.Path = args.out or kept
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for module in modules(tuple(args.only or FIGURES)) if not args.page else ():
        figure = module.FIGURE
        file = page.file_of(folder, figure)
        seconds = figure.slow if args.slow else figure.share(args.device, args.quick)
        if not (args.slow or args.only) and file.exists() and page.read_json(file).get("slow"):
            print(f"{figure.name}: kept, because it is of --slow")
        elif seconds:
            if not in_process(figure.name, Budget(seconds, args.quick, args.device, args.slow), file):
                failed.append(figure.name)
        elif args.only:
            how = "--slow" if args.slow else f"--device {args.device}"
            print(f"tools/results: {figure.name} does not run with {how}", file=sys.stderr)
            failed.append(figure.name)
    if not any(page.file_of(folder, module.FIGURE).exists() for module in modules()):
        print(f"tools/results: {folder} has no figure's JSON file: no page is written", file=sys.stderr)
        return 1
    write(folder)
    print(f"{folder}: README.md, pictures and JSON" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
