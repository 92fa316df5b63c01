#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of the guides against the lists of include/ that they show: check_tables.py SOURCE_ROOT. Prints TAP."""
import pathlib
import re
import sys

LARGEST = float.fromhex("0x1.fffffep127")


def rows_of_list(root, header, name):
    """The lines X(...) of a list, each as texts."""
    code = (root / "include" / header).read_text(encoding="utf-8")
    text = re.search(rf"#define {name}\(X\)(.*?[^\\])\n", code, re.DOTALL).group(1)
    for entry in re.findall(r'X\(((?:"[^"]*"|[^")])*)\)', text.replace("\\\n", " ")):
        yield [field.strip().strip('"') for field in re.findall(r'"[^"]*"|[^",]+', entry) if field.strip()]


def rows_of_table(root, guide, heading):
    """The cells of the first table after a heading, without its two head lines."""
    text = (root / "docs" / guide).read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text):
    """What the table or the header writes for a number."""
    text = {"largest float": str(LARGEST), "1 / growth": "0", "on": "1", "off": "0"}.get(text, text)
    if "^" in text:
        base, exponent = text.split("^")
        return float(base) ** int(exponent)
    return float.fromhex(text.rstrip("f")) if text.startswith("0x") else float(text.rstrip("f"))


def scaler_modes(root):
    """(what, complaints)"""
    listed = {}
    for constant, value, _, name, _, *settings, _ in rows_of_list(root, "amp_scaler.h", "AMP_SCALER_MAP"):
        listed[name] = (f"`{constant.removeprefix('AMP_SCALER_')}` {value}", [number(text) for text in settings])
    shown = {name: (constant, [number(text) for text in settings])
             for name, constant, *settings in rows_of_table(root, "guide/loss-scaling.md", "Defaults")}
    yield "modes were found", [] if len(listed) > 5 else [f"only {listed}"]
    yield "docs/guide/loss-scaling.md has the modes of AMP_SCALER_MAP and their defaults", [
        f"{name}: the list has {listed.get(name)}, the table {shown.get(name)}"
        for name in {**listed, **shown} if listed.get(name) != shown.get(name)]
    rules = re.findall(r"^\*\*(\w+)\.\*\*", (root / "docs" / "guide" / "loss-scaling.md").read_text(encoding="utf-8"),
                       re.MULTILINE)
    yield "docs/guide/loss-scaling.md has the rule of each", sorted(set(listed) ^ set(rules))


def main():
    number_of = 0
    for number_of, (what, complaints) in enumerate(scaler_modes(pathlib.Path(sys.argv[1])), 1):
        print(f"{'not ok' if complaints else 'ok'} {number_of} - {what}")
        for complaint in complaints:
            print(f"# {complaint}")
    print(f"1..{number_of}")


if __name__ == "__main__":
    main()
