#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills README.md's measurements from docs/results.

readme_table.py ROOT            prints TAP: are the figures in README.md, and the gain over autocast in its first lines,
                                those of docs/results, and are the programs those of bench/results?
readme_table.py ROOT --write    writes them into README.md
"""
import json
import pathlib
import statistics
import sys
import textwrap

LEFT = ("4 layers of 4096, C",)  # on the page alone
MARKS = {name: (f"<!-- {name}: tools/readme_table.py fills this block from docs/results -->\n", "<!-- end -->")
         for name in ("programs", "papers")}


def file_of(root, name):
    return root / "docs" / "results" / f"{name}.json"


def results(root, name):
    return json.loads(file_of(root, name).read_text(encoding="utf-8"))


def table(rows):
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join("|" + "|".join(f" {text} " if text else " " for text in line) + "|\n" for line in lines)


def programs(root, speed):
    head = ("program", "machine", "against", *speed.LEVELS, "memory, accuracy")
    return table([head, *((row["program"].split(",")[0], row["machine"], row["against"], *speed.ratios(row),
                           speed.beside(row)) for row in results(root, "speed")["rows"] if row["program"] not in LEFT)])


# ---- papers ----


def percent(runs, member="accuracy"):
    return f"{statistics.mean(run[member] for run in runs):.1f}%"


def masters(data):
    of = {name: percent(runs) for name, runs in data["runs"].items()}
    exact, kept, without = of.values()
    return f"FP32 {exact}, O2 {kept}, without {without}"


def recurrent(data):
    of = {name: sum(run["test"] for run in runs) / len(runs) for name, runs in data["runs"].items()}
    exact, without, scaled = of.values()
    return f"FP32 {exact:.2f}, unscaled {without:.2f}, scaled {scaled:.2f}"


def memory(data):
    of = {way: sum(found["measured"].values()) for way, found in data["ways"].items()}
    half = data["ways"]["O5"]["activation"]["measured"]
    return (f"O0 {of['O0']:.0f}, split masters {of['O5, split']:.1f}, least {min(of.values()):.1f}; an activation: "
            f"{half:.1f} of 4")


def activations(data):
    bits, ratio = min((row["bits"], row["before_mb"] / row["now_mb"]) for row in data["rows"]
                      if row["network"] == "ResNet-50" and row["level"] == "O0")
    return f"{bits} bits {ratio:.1f}x"


def adam(data):
    """By the first line that names each peer."""
    peers = {"torch": "_fused_adam_", "bitsandbytes": "bitsandbytes", "torchao": "torchao"}
    found = {peer: next((line["ratio"] for line in data["lines"] if name in line["reference_name"]
                         and line["reference_name"].startswith("torch")), None) for peer, name in peers.items()}
    return ", ".join(f"{peer} {ratio:.1f}x" for peer, ratio in found.items() if ratio)


PAPERS = (  # figure, name, published, libamp's
    ("masters", "Accuracy", "without masters -80%", masters),
    ("recurrent", "LSTM's loss", "unscaled diverges", recurrent),
    ("memory", "Bytes a parameter with Adam", "activations half", memory),
    ("activations", "ResNet-50's activations", "9.3x smaller", activations),
    ("adam", "Adam on a CPU, beside", "none", adam),
)


def papers(root, _speed):
    told = [f"{what}: {told(results(root, name))} ({published})"
            for name, what, published, told in PAPERS if file_of(root, name).exists()]
    lines = textwrap.wrap(f"Papers again (published): {'. '.join(told)}.", 138, break_on_hyphens=False)
    return "".join(f"{line}\n" for line in lines)


# ---- README ----


def gain(root):
    """O2 and O5 beside autocast, in the words of README.md's first lines."""
    of = [row for row in results(root, "speed")["rows"] if row["against"] == "autocast"]
    ratios = [row["levels"][level] for row in of for level in ("O2", "O5")]
    memory_of = [row["memory"][level] for row in of for level in ("O2", "O5")]
    return (f"{min(ratios):.2f}-{max(ratios):.2f}x as fast, with {min(memory_of):.2f}-{max(memory_of):.2f}x the memory")


def filled(root, text, speed):
    for name, of in {"programs": programs, "papers": papers}.items():
        begin, end = MARKS[name]
        before, rest = text.split(begin)
        text = before + begin + of(root, speed) + end + rest.split(end, 1)[1]
    return text


def main():
    root = pathlib.Path(sys.argv[1])
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root / "bench"))
    from papers.figures import speed

    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    new = filled(root, text, speed)
    if sys.argv[2:] == ["--write"]:
        readme.write_text(new, encoding="utf-8")
        return
    checks = {"README.md's tables are docs/results': tools/readme_table.py . --write": new == text,
              f"its first lines say '{gain(root)}'": gain(root) in text,
              "docs/results has the programs of bench/results: tools/results --only speed":
              results(root, "speed")["rows"] == speed.collected()}
    for number, (what, right) in enumerate(checks.items(), 1):
        print(f"{'ok' if right else 'not ok'} {number} - {what}")
    print(f"1..{len(checks)}")


if __name__ == "__main__":
    main()
