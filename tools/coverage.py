#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which lines and branches of src/ the tests ran: coverage.py BUILD [--list FILE...]

BUILD was configured with -Db_coverage=true and gcc, and its tests have run; under sanitizers, without those checks that
gcov takes for branches (tools/test). Prints one line with both figures and the files below a bar; fails where the whole
is below another. --list prints the lines and branches of these files that nothing ran.

Not counted: src/kernels/cuda/, the branches of calls that may throw, and those of assert().
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

BAR, LISTED = (98.0, 89.0), (95.0, 85.0)  # of lines, of branches: the whole fails below; a file is named below
NOT_COUNTED = re.compile(r"\bassert\(|__builtin_unreachable\(")


def decisions(branches):
    """Without the two of a call that may throw: gcov names the one on which nothing is thrown first."""
    throws = {index for index, branch in enumerate(branches) if branch["throw"]}
    return [branch for index, branch in enumerate(branches) if index not in throws and index + 1 not in throws]


class Source:
    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8").splitlines()
        self.lines = collections.Counter()      # line: how often it ran
        self.branches = collections.Counter()   # (line, which of its branches): how often it was taken

    def add(self, entry):
        number = entry["line_number"]
        self.lines[number] += entry["count"]
        if NOT_COUNTED.search(self.text[number - 1]):
            return
        for index, branch in enumerate(decisions(entry["branches"])):
            self.branches[number, index] += branch["count"]

    def counts(self):
        return [(sum(count > 0 for count in counter.values()), len(counter)) for counter in (self.lines, self.branches)]


def measure(build, root):
    """path below src/: its Source"""
    sources = {}
    notes = sorted((build / "src").rglob("*.gcda"))
    for at in range(0, len(notes), 20):
        output = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", *notes[at:at + 20]],
                                cwd=build, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                check=True).stdout
        for document in filter(None, output.splitlines()):
            for part in json.loads(document)["files"]:
                path = (build / part["file"]).resolve()
                if root / "src" not in path.parents or root / "src/kernels/cuda" in path.parents:
                    continue
                source = sources.setdefault(str(path.relative_to(root)), Source(path))
                for entry in part["lines"]:
                    source.add(entry)
    return sources


def percent(part):
    return 100.0 * part[0] / part[1] if part[1] else 100.0


def is_below(counts, bar):
    return any(percent(part) < least for part, least in zip(counts, bar))


def told(counts):
    return "lines {:.1f} %, branches {:.1f} %".format(*map(percent, counts))


def listing(source):
    for number in sorted(source.lines):
        untaken = [str(index) for (line, index), count in sorted(source.branches.items()) if line == number
                   and not count]
        if not source.lines[number] or untaken:
            what = "branch " + ",".join(untaken) if source.lines[number] else "not run"
            print(f"{number:5} {what:14} {source.text[number - 1].strip()}")


def main():
    build, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(__file__).resolve().parent.parent
    sources = measure(build, root)
    if not sources:
        sys.exit(f"coverage.py: nothing was recorded in {build}: configure with -Db_coverage=true and run the tests")
    for name in sys.argv[3:]:
        print(name)
        listing(sources[name])
    per_file = {name: source.counts() for name, source in sources.items()}
    total = [tuple(map(sum, zip(*(counts[kind] for counts in per_file.values())))) for kind in (0, 1)]
    for name, counts in sorted(per_file.items()):
        if is_below(counts, LISTED):
            print(f"   {name}: {told(counts)}")
    print(f"coverage of src/: {told(total)}")
    if is_below(total, BAR):
        sys.exit("coverage.py: the bar is {:.0f} % of lines and {:.0f} % of branches".format(*BAR))


if __name__ == "__main__":
    main()
