#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No message says "1 bytes": check_counts.py ROOT

A number before a plural noun, in the strings of src/ and of the package for Python, is followed by AMP__S, AMP_PY_S or
counted(), by a form without a noun in the plural ("loss scalers: 1"), or by a limit that is above 1. "1 of 1 steps" is
right: a whole has a plural. test_check_counts.py plants violations.
"""
import ast
import pathlib
import re
import sys

# Words in -s after a number that are no nouns in the plural: "optimizer 1 has".
OTHERS = {"as", "by", "does", "exists", "goes", "has", "is", "its", "less", "lies", "lists", "needs", "of", "plus",
          "this", "travels", "was"}
# Nouns of the messages of Python, where a string's value may be any word.
NOUNS = ("arguments", "backwards", "batches", "brackets", "bytes", "calls", "casts", "cells", "channels", "classes",
         "copies", "decisions", "dimensions", "elements", "entries", "findings", "floats", "gradients", "groups",
         "inputs", "iterations", "layers", "lines", "lists", "losses", "models", "modules", "names", "numbers", "ops",
         "optimizers", "others", "pairs", "parameters", "parts", "ranks", "rows", "scalers", "seconds", "skips",
         "steps", "tensors", "things", "times", "types", "updates", "values", "weights", "words")
# A noun may have one or two words before it: "2 whole numbers".
NUMBER = re.compile(r"%[0-9.]*(?:z|ll|l|j|h)?[uid] (?:(?:step|wrapped|whole|loss|sampled) )?([a-z]*[a-rt-z]s)\b")
FIELD = re.compile("\x00 (?:(?:loss|whole|observed|other|more) )?(" + "|".join(NOUNS) + r")\b")
LIMIT = re.compile(r"(?:at most|more than|longer than|up to|1 to) $")
WHOLE = re.compile(r"(?:(?:^|[;:,] )of|(?:%\w+|%%|\x00|\b\d+|none|all) of) (?:its |the (?:[\w']+ )?)?$")
C_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:"(?:[^"\\\n]|\\.)*"|PRI[a-z0-9]+))*')
FOLDERS = {"src": (".c", ".h", ".inc", ".cu"), "bindings/python/src": (".c", ".h"), "bindings/python/libamp": (".py",)}
# Numbers that are above 1 where the message is written, and indices. Each row is used, or the check fails.
KNOWN = {
    ("src/api/explain.c", "%llu times"),  # only above 1
    ("src/api/explain.c", "%zu findings"),  # the other arm of n == 1
    ("src/bracket/decide.c", "%d steps"),  # a constant
    ("src/bracket/tell.c", "%d steps"),  # a constant
    ("src/bracket/unseen.c", "%d brackets"),  # a constant
    ("src/call/tape.c", "%zu casts"),  # thousands
    ("src/common/abi.c", "%zu bytes"),  # sizes of structures
    ("src/context/ops.c", "%zu entries"),  # above a million
    ("src/initialize.c", "%zu ops"),  # an index
    ("src/initialize.c", "%zu steps"),  # an index
    ("src/kernels/device_matmul.c", "%zu bytes"),  # a type's size or a constant
    ("src/kernels/cuda/product.c", "%llu bytes"),  # cuBLASLt's blocks, and more than a given block
    ("src/raw/release.c", "%zu bytes"),  # pages
    ("src/state/header.c", "%zu dimensions"),  # above the format's limit
    ("src/state/load.c", "%llu bytes"),  # above the format's limit
    ("bindings/python/libamp/_report/verdict.py", "{} weights"),  # a type
    ("bindings/python/libamp/mlx/amp.py", "{} models"),  # 0 or above 1
    ("bindings/python/libamp/torch/amp/fully_sharded.py", "{} casts"),  # a level
    ("bindings/python/libamp/torch/doctor/checks/scaling.py", "{} scalers"),  # 5 or more
    ("bindings/python/libamp/torch/doctor/checks/weights.py", "{} optimizers"),  # above 1
    ("bindings/python/libamp/torch/optimizers/eight_bits.py", "{} elements"),  # a constant
}


def joined(literals):
    """The text of adjacent literals in C."""
    return "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', literals))


def wrong(text, pattern):
    """Yields the places in one message where the number 1 would come before a plural."""
    for match in pattern.finditer(text):
        before, after = text[:match.start()], text[match.end():]
        if match[1] in OTHERS or LIMIT.search(before) or after.startswith(" at most") or WHOLE.search(before):
            continue
        yield match[0].replace("\x00", "{}")


def messages(path):
    """Yields (message, pattern) of a file. In Python's, \\x00 is a value."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for match in C_STRINGS.finditer(text):
            yield joined(match[0]), NUMBER
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\x00" for part in node.values)
            yield "".join(parts), FIELD


def check(root):
    """Returns the faults as lines."""
    faults, used = [], set()
    for folder, suffixes in FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in suffixes:
                continue
            name = path.relative_to(root).as_posix()
            for message, pattern in messages(path):
                for place in wrong(message, pattern):
                    if (name, place) in KNOWN:
                        used.add((name, place))
                    else:
                        faults.append(f'{name}: "{place}" says "1 ...s": end the noun by AMP__S(n) or counted(n, noun)')
    return faults + [f"check_counts.py: KNOWN has {row}, which no message has" for row in KNOWN if row not in used]


def main(root):
    faults = check(pathlib.Path(root))
    print("\n".join(faults), end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
