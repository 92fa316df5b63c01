#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that check_counts.py finds "1 bytes" in a message, and nothing in a right one. Prints TAP."""
from check_counts import messages, wrong

WRONG = [
    ("a number before a plural", ".c", r'f("the state has %llu bytes", n);'),
    ("one in the second of two literals", ".c", 'f("has %zu "\n  "loss scalers", n);'),
    ("an adjective between", ".c", r'f("%zu wrapped ops saw no call", n);'),
    ("the second number", ".c", r'f("%d step%s and %d calls", n, AMP__S(n), m);'),
    ("a whole without its part", ".c", r'f("a block of %zu bytes", n);'),
    ("a value of Python", ".py", 'f"has {len(scalers)} loss scalers"'),
    ("a value in the second of two literals", ".py", 'f"has {n}" " steps"'),
]
RIGHT = [
    ("an end by AMP__S", ".c", r'f("%llu byte%s", n, AMP__S(n));'),
    ("a whole after its part", ".c", r'f("%zu of its %zu parameters got none", n, m);'),
    ("a share of a whole", ".c", r'f("%.3g %% of %llu elements are 0", a, n);'),
    ("a limit", ".c", r'f("at most %d arguments", LIMIT);'),
    ("a verb", ".c", r'f("loss scale %u goes from %g to %g", i, a, b);'),
    ("a colon", ".c", r'f("omitted, tensors and ops: %zu", n);'),
    ("a comment", ".c", "/* %d bytes */"),
    ("an end by counted()", ".py", "f\"{counted(n, 'step')} in a row\""),
    ("a part of a whole in Python", ".py", 'f"{a} of {b} steps were skipped"'),
    ("a value that is a word", ".py", 'f"{level} makes parameters 16-bit"'),
]


class Text:
    """A file that is not on a disk."""

    def __init__(self, suffix, text):
        self.suffix, self.text = suffix, text

    def read_text(self, encoding):
        return self.text


def found(suffix, text):
    return [place for message, pattern in messages(Text(suffix, text)) for place in wrong(message, pattern)]


def main():
    results = [(f"finds {what}", bool(found(suffix, text))) for what, suffix, text in WRONG]
    results += [(f"accepts {what}", not found(suffix, text)) for what, suffix, text in RIGHT]
    print(f"1..{len(results)}")
    for number, (what, passed) in enumerate(results, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {what}")


if __name__ == "__main__":
    main()
