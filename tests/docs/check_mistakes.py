#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/mistakes.md and the library say the same of each finding: check_mistakes.py ROOT [--write]

Codes, titles, reasons and mends stand once, in src/context/findings.inc and, for those that only scripts can make, in
bindings/python/libamp/_findings.py. --write makes the page of them.
"""
import ast
import pathlib
import re
import sys

HEAD = """# Mistakes

What libamp finds in the way that it is wired, each with the code that its messages begin with. Errors fail the call that they
come from, and nothing has changed; warnings come once, as `AMP_EVENT_WARNING`, or on standard error where the host has no hook
`event` (`AMP_LOG=error|warn|info|trace|off`). `amp_get_findings` has them as data, and the last line of `amp_health` is
`sound`, or how many there are. A line in these messages says what was seen; this page says why it matters.

This page is made of `src/context/findings.inc` and `bindings/python/libamp/_findings.py` (`tests/docs/check_mistakes.py .
--write`).

"""
SCRIPTS = """What libamp finds in scripts, which hear the codes above, too: a `libamp.FindingWarning` each, once, with the script's own
line. [python.md](python.md#mistakes) has when, and `python -m libamp.run --check script.py`.

"""
ROW = re.compile(r'^FINDING\((\w+), (".*?)\)\n', re.MULTILINE | re.DOTALL)
STRING = re.compile(r'"((?:\\.|[^"\\])*)"')


def arguments(text):
    """The string literals of a row: neighbours without a comma between them are one."""
    found, end = [], None
    for match in STRING.finditer(text):
        literal = match.group(1).replace('\\"', '"').replace("\\\\", "\\")
        if end is not None and not text[end:match.start()].strip():
            found[-1] += literal
        else:
            found.append(literal)
        end = match.end()
    return found


def library_rows(root):
    text = (root / "src" / "context" / "findings.inc").read_text(encoding="utf-8")
    return [arguments(row) for _, row in ROW.findall(text)]


def script_table(root, name):
    path = root / "bindings" / "python" / "libamp" / "_findings.py"
    if not path.exists():
        return {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id == name:
            return ast.literal_eval(node.value)
    raise SystemExit(f"{path}: there is no {name}")


def script_rows(root):
    return [[code, *texts] for code, texts in script_table(root, "FINDINGS").items()]


def page(root):
    text = HEAD
    for title, words, rows in (("Programs", "", library_rows(root)), ("Scripts", SCRIPTS, script_rows(root))):
        if not rows:
            continue
        text += f"## {title}\n\n{words}| code | what | why it is wrong | what to do |\n| --- | --- | --- | --- |\n"
        for code, what, why, mend in rows:
            cells = (cell.replace("|", "\\|") for cell in (what, why, mend[0].upper() + mend[1:]))
            text += "| " + " | ".join([f"`{code}`", *cells]) + " |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    path, wanted = root / "docs" / "mistakes.md", page(root)
    if "--write" in sys.argv[2:]:
        path.write_text(wanted, encoding="utf-8")
        return 0
    mends = {row[0]: row[3] for row in library_rows(root)}
    replaced = script_table(root, "MENDS").items()
    codes = [row[0] for row in library_rows(root) + script_rows(root)]
    points = [
        ("the page is made of the table", path.read_text(encoding="utf-8") == wanted),
        ("each code stands once", len(codes) == len(set(codes)) and len(codes) > 20),
        ("codes are AMP-M and two digits", all(re.fullmatch(r"AMP-M\d\d", code) for code in codes)),
        ("what scripts hear in the place of a mend is of one", all(mends[code].startswith(old) for code, (old, _) in replaced)),
        ("each row has four texts", all(len(row) == 4 and all(row) for row in library_rows(root) + script_rows(root))),
    ]
    print(f"1..{len(points)}")
    for number, (name, passed) in enumerate(points, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {name}")
    return 0 if all(passed for _, passed in points) else 1


if __name__ == "__main__":
    sys.exit(main())
