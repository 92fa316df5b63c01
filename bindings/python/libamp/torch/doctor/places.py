# SPDX-License-Identifier: Apache-2.0
"""Lines of the script, also below a framework that calls torch for it."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from ..._findings import Place
from .watch import NOWHERE

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_HERE}
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "transformers", "deepspeed", "fastai", "ignite", "apex",
              "torchtune", "trl", "composer")  # fmt: skip
_kinds: dict[str, bool] = {}


def _is_library(name: str) -> bool:
    known = _kinds.get(name)
    if known is None:
        known = name.startswith((*_LIBRARIES, "<frozen")) or any(part in name for part in _PACKAGES)
        _kinds[name] = known
    return known


def script_place(frame: Any = None) -> Place:
    """Returns the innermost line that is in no installed package, else NOWHERE. A thread of autograd has none."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_library(name):
            return Place(name, frame.f_lineno, str(frame.f_globals.get("__name__", "__main__")))
        frame = frame.f_back
    return NOWHERE


def script_locals() -> Iterator[tuple[str, Any]]:
    """Yields the variables of the script's functions on the stack, innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            yield from list(frame.f_locals.items())
        frame = frame.f_back


def frameworks() -> set[str]:
    """Returns the frameworks that are on the stack."""
    found, frame = set(), sys._getframe(1)
    while frame is not None:
        found.add(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back  # type: ignore[assignment]
    return found & set(FRAMEWORKS)
