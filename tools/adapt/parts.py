# SPDX-License-Identifier: Apache-2.0
"""The constant parts of an adapter, which lie in parts/: part("head", prefix="adapter") -> C, with @prefix@ filled
in."""
import pathlib
import textwrap

PARTS = pathlib.Path(__file__).resolve().parent / "parts"


def part(name, **values):
    text = (PARTS / f"{name}.c.in").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def comment(text, indent="    "):
    """One C comment, as many lines as it takes."""
    lines = textwrap.wrap(text, 112 - len(indent))
    return f"{indent}/* " + f"\n{indent} * ".join(lines) + " */\n"


def literals(text, width, indent):
    """A long C string as several, one a line."""
    return f'"\n{indent}"'.join(textwrap.wrap(text, width, drop_whitespace=False))
