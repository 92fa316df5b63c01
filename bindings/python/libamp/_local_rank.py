# SPDX-License-Identifier: Apache-2.0
"""The rank that torch.distributed.launch passes to a script as first argument: --local_rank=0, since 2023
--local-rank=0. Under libamp.run sys.argv has the newer spelling if the script's text has only that, else the older. An
argparse parser accepts the one that it defines."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

OLD, NEW = "--local_rank", "--local-rank"


def is_rank(argument: str) -> bool:
    return argument.startswith((OLD + "=", NEW + "="))


def for_script(argument: str, text: str) -> str:
    """Returns the rank in the spelling for a script with this text."""
    newer = NEW in text and OLD not in text
    return (NEW if newer else OLD) + argument[len(OLD) :]


def text_of(command: Sequence[str]) -> str:
    """Returns the text that Python will run: of [script, …], ["-m", module, …] or ["-c", code, …]. Empty if there is
    none."""
    how, name = command[0][:2], command[0][2:] or "".join(command[1:2])
    if how == "-c":
        return name
    files = [command[0]]
    if how == "-m":
        folders = [os.getcwd(), *sys.path]  # importing it here would run its packages
        stems = [os.path.join(folder, *name.split(".")) for folder in folders]
        files = [file for stem in stems for file in (stem + ".py", os.path.join(stem, "__main__.py"))]
    for file in files:
        if os.path.isfile(file):
            with open(file, encoding="utf-8", errors="replace") as opened:
                return opened.read()
    return ""


def prepare() -> None:
    """Prepares the process of a rank, before its script runs."""
    given = [f"{spelling}={os.environ.get('LOCAL_RANK')}" for spelling in (OLD, NEW)]
    if len(sys.argv) > 1 and sys.argv[1] in given:
        start = len(sys.orig_argv) - len(sys.argv)  # at start-up sys.argv has no module and no code
        start -= sys.orig_argv[start - 1] in ("-m", "-c")
        sys.argv[1] = for_script(sys.argv[1], text_of(sys.orig_argv[start:]))
    parse_what_is_known()


def parse_what_is_known() -> None:
    """Makes argparse accept either spelling for the one that a parser defines."""
    own = argparse.ArgumentParser.parse_known_args
    if hasattr(own, "__wrapped__"):
        return

    @functools.wraps(own)
    def parse_known_args(self: Any, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else args
        return own(self, [_as_known(self, argument) for argument in given], namespace)

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _as_known(parser: argparse.ArgumentParser, argument: Any) -> Any:
    """Returns the spelling that the parser defines, if it defines one of the two."""
    known = getattr(parser, "_option_string_actions", {})
    if isinstance(argument, str) and is_rank(argument) and (OLD in known) != (NEW in known):
        return (OLD if OLD in known else NEW) + argument[len(OLD) :]
    return argument
