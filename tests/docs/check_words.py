#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts words that make prose hard to read: check_words.py ROOT [--list]. Prints TAP.

Per 1,000 words of four areas, "what", "who, whose, whom" and semicolons stay below LIMITS, which only ever fall. A page
of docs/ is at most PAGE bytes. The counts are an alarm, not the aim: CONTRIBUTING.md says how to write. --list prints
the counts of every file.
"""
import pathlib
import re
import sys

GOALS = {"what": 3, "who, whose": 2, "semicolons": 5}
LIMITS = {  # per 1,000 words: what; who, whose; semicolons. Lower them with every rewrite, down to GOALS
    "README.md": (3, 2, 5),
    "docs": (0.9, 0.4, 1.2),
    "include": (1, 0.5, 5),
    "src": (1, 0.5, 5),
}
PAGE = 24 * 1024

PATTERNS = {"what": r"\bwhat\b", "who, whose": r"\bwho(?:se|m)?\b", "semicolons": ";"}
BLOCK = re.compile(r"^(?:```.*?^```$|(?:    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
CODE = re.compile(r"^ *\* {5,}[^\n]*[;{}][^\n]*$", re.MULTILINE)  # of an example in a comment
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def prose(path):
    """A page without blocks of code, inline code and targets of links; a source file's comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return INLINE.sub("`", BLOCK.sub("", text))
    comments = (comment for comment in COMMENT.findall(text) if not comment.startswith('"'))
    return CODE.sub("", "\n".join(comments))


def files_of(root, area):
    if area.endswith(".md"):
        return [root / area]
    kinds = {"docs": {".md"}}.get(area, {".c", ".h", ".hpp", ".cu", ".cuh", ".inc"})
    return sorted(path for path in (root / area).rglob("*") if path.suffix in kinds)


def counts(text):
    """Words, and how many of each kind."""
    words = re.findall(r"[A-Za-z0-9][\w'-]*", text)
    return len(words), [len(re.findall(kind, text, re.IGNORECASE)) for kind in PATTERNS.values()]


def area_complaints(root, area):
    files = {path: counts(prose(path)) for path in files_of(root, area)}
    words = sum(count for count, _ in files.values())
    complaints = [] if words > 300 else [f"only {words} words: the check itself is wrong"]
    for index, (kind, limit) in enumerate(zip(PATTERNS, LIMITS[area])):
        rate = 1000 * sum(found[index] for _, found in files.values()) / max(words, 1)
        print(f"# {area}: {kind} {rate:.2f} (limit {limit}, goal {GOALS[kind]})")
        if rate > limit:
            worst = sorted(files, key=lambda path: -files[path][1][index])[:5]
            complaints.append(f"{kind}: {rate:.2f} per 1,000 words, limit {limit}; most in " + ", ".join(
                f"{path.relative_to(root)} ({files[path][1][index]})" for path in worst))
    return complaints


def pages(root):
    """Pages above the limit."""
    large = sorted(path.relative_to(root) for path in (root / "docs").rglob("*.md") if path.stat().st_size > PAGE)
    return [f"{page}: more than {PAGE} bytes" for page in large]


def counter():
    """The counter itself."""
    text = BLOCK.sub("", "What is it; whose?\n\n    what();\n\n```c\nwhat;\n```\n")
    return [] if counts(text) == (4, [1, 1, 1]) else [f"{counts(text)}"]


def main():
    root = pathlib.Path(sys.argv[1])
    if "--list" in sys.argv[2:]:
        for path in (path for area in LIMITS for path in files_of(root, area)):
            words, found = counts(prose(path))
            rest = ", ".join(f"{kind} {n}" for kind, n in zip(PATTERNS, found))
            print(f"{path.relative_to(root)}: {words} words, {rest}")
        return
    checks = [("the counter counts", counter()),
              *((f"words of {area}", area_complaints(root, area)) for area in LIMITS),
              (f"pages of docs have at most {PAGE} bytes", pages(root))]
    print(f"1..{len(checks)}")
    for number, (name, complaints) in enumerate(checks, 1):
        print(f"{'not ok' if complaints else 'ok'} {number} - {name}")
        for complaint in complaints:
            print(f"# {complaint}")


if __name__ == "__main__":
    main()
