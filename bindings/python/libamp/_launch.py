# SPDX-License-Identifier: Apache-2.0
"""The rank that torch.distributed.launch hands to a script as its first argument: --local_rank=0, since 2023 --local-rank=0.
Under libamp.run a script finds the older spelling in sys.argv; a parser of argparse gets the one that it knows."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

OLD, NEW = "--local_rank", "--local-rank"


def is_rank(argument: str) -> bool:
    return argument.startswith((OLD + "=", NEW + "="))


def as_before(argument: str) -> str:
    """With the spelling of 2020."""
    return OLD + argument[len(NEW) :] if is_rank(argument) else argument


def prepare() -> None:
    """In the process of a rank, before its script runs."""
    if sys.argv[1:2] == [f"{NEW}={os.environ.get('LOCAL_RANK')}"]:
        sys.argv[1] = as_before(sys.argv[1])
    own = argparse.ArgumentParser.parse_known_args
    if hasattr(own, "__wrapped__"):
        return

    @functools.wraps(own)
    def parse_known_args(self: Any, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else args
        return own(self, [_as_known(self, argument) for argument in given], namespace)

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _as_known(parser: argparse.ArgumentParser, argument: Any) -> Any:
    """The spelling that the parser has, if it has one of the two."""
    known = getattr(parser, "_option_string_actions", {})
    if isinstance(argument, str) and is_rank(argument) and (OLD in known) != (NEW in known):
        return (OLD if OLD in known else NEW) + argument[len(OLD) :]
    return argument
