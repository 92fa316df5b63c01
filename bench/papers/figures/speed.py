# SPDX-License-Identifier: Apache-2.0
"""Whole programs with and without libamp. They take GPUs, other packages and hours: this figure collects the tables of
bench/results, and measures nothing."""
from __future__ import annotations

import pathlib
import re

from ..bars import Bar, height_of
from ..bars import draw as draw_bars
from ..figure import PAPER, Budget, Data, Figure, Source, table
from ..svg import Axis, Picture, colour

FIGURE = Figure("speed", "Whole programs", Source(
    "kernels that are limited by memory or arithmetic are 2 to 6 times as fast on a Volta GPU.",
    {"times as fast, at least": 2, "at most": 6}, f"{PAPER}, section 5"), seconds=1, quick=1)
RESULTS = pathlib.Path(__file__).resolve().parents[3] / "bench" / "results"
H100, PROGRAMS, STEPS = "2026-11-27-nvidia-h100.md", "2026-11-27-programs-cpu.md", "2026-11-27-train-cpu.md"
MODELS = {"GPT-2": "GPT-2, 16 x 512 tokens", "BERT": "BERT, 64 x 128 tokens"}
LEVELS = {"O1": "autocast-fp16", "O2": "autocast-fp16", "O4": "autocast-bf16", "O5": "autocast-bf16"}
PROGRAMS_SHOWN = {"darknet": ("darknet, digits", "tests/darknet/show.sh"),
                  "ggml": ("ggml, llama-like", "tests/ggml/show.sh")}


def find(text: str, *cells: str) -> dict[str, str]:
    """Returns the last row of a Markdown table that starts with these cells, by the names in its table's head."""
    head: list[str] = []
    found: dict[str, str] = {}
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not row:
            head = []
        elif not head:
            head = row
        elif tuple(row[: len(cells)]) == cells:
            found = dict(zip(head, row))
    if not found:
        raise KeyError(f"no row | {' | '.join(cells)} |")
    return found


def number(row: dict[str, str], column: str) -> float:
    return float(row[column].replace(",", ""))


def program(name: str, machine: str, against: str, command: str, levels: dict[str, float], memory: dict[str, float],
            accuracy: str = "") -> Data:
    return {"program": name, "machine": machine, "against": against, "command": command, "accuracy": accuracy,
            "levels": {level: round(ratio, 4) for level, ratio in levels.items()},
            "memory": {level: round(ratio, 4) for level, ratio in memory.items()}}


def collected() -> list[Data]:
    h100, programs, on_cpu = ((RESULTS / name).read_text(encoding="utf-8") for name in (H100, PROGRAMS, STEPS))
    found = []
    for model, size in MODELS.items():
        of = {level: (find(h100, model, level), find(h100, model, peer)) for level, peer in LEVELS.items()}
        least = min(number(peer, "MiB") for _, peer in of.values())  # it varies from run to run, for any type
        found.append(program(
            size, "H100", "autocast", "bench/python/train.py",
            {level: number(peer, "GPU ms") / number(mine, "GPU ms") for level, (mine, peer) in of.items()},
            {level: number(mine, "MiB") / least for level, (mine, _) in of.items()}))
    found.append(program("transformer, PyTorch", "Xeon, AMX", "FP32", "tools/bench --python", {
        level: number(find(on_cpu, "transformer", level, "all", "FP32"), "ratio") for level in LEVELS}, {}))
    steps = re.findall(r"^step +training step, (O\d) .*? ms +([\d.]+) .*the same host in FP32$", h100, re.MULTILINE)
    found.append(program("4 layers of 4096, C", "H100", "FP32", "tools/gpu pack",
                         {level: float(ratio) for level, ratio in steps}, {}))
    for name, (shown, command) in PROGRAMS_SHOWN.items():
        rows = {level: find(programs, name, level) for level in LEVELS if f"| {name} | {level} |" in programs}
        first = next(iter(rows.values()))
        accuracy = [f"{level}: {row['accuracy']}" for level, row in rows.items()]
        found.append(program(
            f"{shown}, C", first["machine"], "FP32", command,
            {level: number(row, "seconds alone") / number(row, "seconds") for level, row in rows.items()}, {},
            f"FP32: {first['accuracy alone']}, {', '.join(accuracy)}" if first["accuracy"] != "-" else ""))
    return found


def measure(budget: Budget) -> Data:
    """Machine, date and commit are those of the tables."""
    h100 = (RESULTS / H100).read_text(encoding="utf-8")
    return {"seeds": "none", "steps": "see the tables", "machine": "those of the table", "date": H100[:10],
            "commit": re.findall(r"commits \w+ to (\w+)$", h100.splitlines()[0])[0],
            "versions": {"torch": "2.11, 2.15"}, "sources": [H100, PROGRAMS, STEPS], "rows": collected()}


def ratios(row: Data) -> list[str]:
    return [f"{row['levels'][level]:.2f}x" if level in row["levels"] else "" for level in LEVELS]


def beside(row: Data) -> str:
    """Returns memory at O2 and O5, or the accuracy."""
    memory = ", ".join(f"{level}: {row['memory'][level]:.2f}x" for level in ("O2", "O5") if level in row["memory"])
    return str(memory or row["accuracy"])


def words(data: Data) -> str:
    rows: list[list[object]] = [[row["program"], row["machine"], row["against"], *ratios(row), beside(row),
                                 f"`{row['command']}`"] for row in data["rows"]]
    links = ", ".join(f"[{name[:-3]}](../../bench/results/{name})" for name in data["sources"])
    return f"""
times as fast as the third column, from {links}, which name commits, dates and settings. Autocast is PyTorch's, with the
same AdamW. darknet is unedited, ggml is joined to libamp by a header, and the layers are the demo's framework.

{table(['program', 'machine', 'against', *LEVELS, 'memory, accuracy', 'command'], rows)}
"""


def draw(data: Data) -> dict[str, str]:
    rows = []
    for row in data["rows"]:
        rows.append(Bar(f"{row['program']}, {row['machine']}, beside {row['against']}", head=True))
        rows += [Bar(level, [(ratio, colour(0) if ratio >= 0.995 else "var(--bad)")], f"{ratio:.2f}x")
                 for level, ratio in row["levels"].items()]
    picture = Picture(760, 76 + height_of(rows) + 10, FIGURE.title, "Bars: how many times as fast programs are.")
    picture.text(16, 50, "Times as fast (broken line: as fast)")
    draw_bars(picture, 76, rows, Axis(0, 9, ""), left=120, told=70, rule=1)
    return {"speed.svg": picture.svg()}
