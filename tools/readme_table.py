#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills README.md's table of measurements from bench/results.

readme_table.py ROOT            prints TAP: are the table in README.md, and the gain over autocast that its first lines
                                name, those that bench/results gives?
readme_table.py ROOT --write    writes it into README.md

Each row names its result file; a figure that is missing there is an error.
"""
import pathlib
import re
import sys

BEGIN, END = "<!-- bench: tools/readme_table.py fills this block from bench/results -->\n", "<!-- end -->"
H100, PROGRAMS, STEPS = "2026-11-27-nvidia-h100.md", "2026-11-27-programs-cpu.md", "2026-11-27-train-cpu.md"
MODELS = {"GPT-2": "GPT-2, 16 x 512 tokens", "BERT": "BERT, 64 x 128 tokens"}
LEVELS = {"O1": "autocast-fp16", "O2": "autocast-fp16", "O4": "autocast-bf16", "O5": "autocast-bf16"}
PROGRAMS_SHOWN = {"darknet": ("darknet, digits", "tests/darknet/show.sh"),
                  "ggml": ("ggml, llama-like", "tests/ggml/show.sh"), "demo": ("demo, digits", "tools/demo")}
TRAIN = "`bench/python/train.py`"


def find(text, *cells):
    """The last row of a Markdown table that starts with these cells, by the names in its table's head."""
    head, found = [], None
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not row:
            head = []
        elif not head:
            head = row
        elif tuple(row[: len(cells)]) == cells:
            found = dict(zip(head, row))
    if found is None:
        raise KeyError(f"no row | {' | '.join(cells)} |")
    return found


def number(row, column):
    return float(row[column].replace(",", ""))


def rows(root):
    """(program, machine, peer, command, memory, accuracy, {level: times as fast})"""
    results = root / "bench" / "results"
    h100, programs, on_cpu = ((results / name).read_text(encoding="utf-8") for name in (H100, PROGRAMS, STEPS))
    for model, size in MODELS.items():
        of = {level: (find(h100, model, level), find(h100, model, peer)) for level, peer in LEVELS.items()}
        memory = {level: number(mine, "MiB") / number(peer, "MiB") for level, (mine, peer) in of.items()}
        yield size, "H100", "autocast", TRAIN, f"O2: {memory['O2']:.2f}x, O5: {memory['O5']:.2f}x", "", {
            level: number(peer, "GPU ms") / number(mine, "GPU ms") for level, (mine, peer) in of.items()}
    yield ("transformer, PyTorch", "Xeon, AMX", "FP32", "`tools/bench --python`", "", "",
           {level: number(find(on_cpu, "transformer", level, "all", "FP32"), "ratio") for level in LEVELS})
    steps = re.findall(r"^step +training step, (O\d) .*? ms +([\d.]+) .*the same host in FP32$", h100, re.MULTILINE)
    yield ("4 layers of 4096, C", "H100", "FP32", "`tools/gpu pack`", "", "",
           {level: float(ratio) for level, ratio in steps})
    for program, (name, command) in PROGRAMS_SHOWN.items():
        found = {level: find(programs, program, level) for level in LEVELS if f"| {program} | {level} |" in programs}
        known = {}  # levels of the same accuracy together
        for level, row in found.items():
            known.setdefault(row["accuracy"], []).append(level)
        accuracy = ", ".join(f"{'/'.join(levels)}: {known_as}" for known_as, levels in known.items())
        first = next(iter(found.values()))
        saved = sorted({row["activations"] for row in found.values()} - {"-"})
        memory = f"activations: {saved[0]}-{saved[-1]}x" if saved else ""
        accuracy = f"FP32: {first['accuracy alone']}, {accuracy}" if first["accuracy"] != "-" else ""
        yield (f"{name}, C", first["machine"], "FP32", f"`{command}`", memory, accuracy,
               {level: number(row, "seconds alone") / number(row, "seconds") for level, row in found.items()})


def block(root):
    head = ("program", "machine", "against", *LEVELS, "memory, accuracy", "command")
    table = [head, ("---",) * len(head)]
    table += [(program, machine, peer, *(f"{figures[level]:.2f}x" if level in figures else "" for level in LEVELS),
               "; ".join(filter(None, (memory, accuracy))).replace(" %", "%"), command)
              for program, machine, peer, command, memory, accuracy, figures in rows(root)]
    return "".join("|" + "|".join(f" {text} " if text else " " for text in row) + "|\n" for row in table)


def gain(root):
    """O2 and O5 beside autocast, in the words of README.md's first lines."""
    of = [row for row in rows(root) if row[2] == "autocast"]
    ratios = [figures[level] for *_, figures in of for level in ("O2", "O5")]
    memory = [float(ratio) for row in of for ratio in re.findall(r"[\d.]+(?=x)", row[4])]
    return f"{min(ratios):.2f}-{max(ratios):.2f}x as fast, with {min(memory):.2f}-{max(memory):.2f}x the memory"


def main():
    root = pathlib.Path(sys.argv[1])
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    new = before + BEGIN + block(root) + END + rest.split(END, 1)[1]
    if sys.argv[2:] == ["--write"]:
        readme.write_text(new, encoding="utf-8")
        return
    print("ok 1 - README.md's table is bench/results'" if new == text else
          "not ok 1 - README.md's table is bench/results': tools/readme_table.py . --write")
    print(f"{'ok' if gain(root) in text else 'not ok'} 2 - its first lines say '{gain(root)}'")
    print("1..2")


if __name__ == "__main__":
    main()
