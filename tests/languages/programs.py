# SPDX-License-Identifier: Apache-2.0
"""What the tests of other languages share. Their compilers are called as a user would call them, outside the build."""
import gzip
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
from support import Tap, expect, run, scratch  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import

LEARNED = 90.0  # per cent: what these networks reach at every level is 95 and more, and 10 where nothing is learned


def find(variable, name):
    """The compiler that the environment names, or that there is; None."""
    return shutil.which(os.environ.get(variable) or name)


def write_digits(source, folder):
    """The images as plain text, for languages that cannot read gzip."""
    path = folder / "digits.csv"
    path.write_bytes(gzip.decompress((source / "examples" / "data" / "digits.csv.gz").read_bytes()))
    return path


def check_page(page, language, program, printed):
    """The page has the lines that a program printed, and its block of code has lines of the program, unchanged."""
    lines = [f"    {line}" for line in printed.splitlines()]
    expect(lines and "\n".join(lines) in page, f"it prints\n{printed}")
    shown = re.search(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL).group(1)
    expect(shown in program.read_text(encoding="utf-8"), f"{program} has other lines than\n{shown}")


def check_training(said, level, target):
    """The loss, of what a program printed: that it learned, ran its ops in the type `target`, and is soundly wired."""
    found = re.search(rf"^{level}: ([\d.]+) % right, loss ([\d.]+), (\d+) steps, (\d+) skipped, scale", said,
                      re.MULTILINE)
    expect(found, said)
    accuracy, loss, steps, skipped = map(float, found.groups())
    expect(accuracy >= LEARNED and steps > 100 and skipped < 10, said)
    types = re.findall(r"calls, last in type (\d)$", said, re.MULTILINE)
    expect(types == [str(target)] * 3 and said.endswith("\nsound\n"), said)
    return loss


def check_levels(train):
    """train(level) is what the program prints at it. AMP_FLOAT16 is 2, AMP_BFLOAT16 3; at O0 nothing is cast."""
    losses = {level: check_training(train(level), level, target) for level, target in (("O0", 0), ("O1", 2), ("O4", 3))}
    expect(len(set(losses.values())) == 3, f"two levels computed the same: {losses}")
