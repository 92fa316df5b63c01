# SPDX-License-Identifier: Apache-2.0
"""What libamp has run with, in one place: the warnings below, docs/start/install.md and the tests go by it."""
from __future__ import annotations

import re
import warnings
from typing import Any

TORCH = ((2, 0), (2, 15))  # the oldest and the newest PyTorch
SEVERAL_GPUS = False  # no machine with several GPUs has run it

_told: set[str] = set()


def outside(version: str) -> str:
    """In words, what is untried about this version of PyTorch; an empty text for one that was tried."""
    found = re.match(r"(\d+)\.(\d+)", version)
    oldest, newest = TORCH
    if found is not None and oldest <= (int(found[1]), int(found[2])) <= newest:
        return ""
    tried = " to ".join(f"{major}.{minor}" for major, minor in TORCH)
    return f"libamp was tried with PyTorch {tried}, and this is {version}"


def check(version: str) -> None:
    """At the import: one warning for a PyTorch outside of the range."""
    if text := outside(version):
        text += ": if a training goes wrong, look at amp.health() first"
        warnings.warn(text, RuntimeWarning, stacklevel=4)  # the line that imports libamp.torch


def several_gpus(what: str, device: Any, ranks: int) -> None:
    """Once in a process, where ranks on GPUs work together by libamp's own code."""
    if SEVERAL_GPUS or ranks < 2 or getattr(device, "type", "cpu") == "cpu" or "gpus" in _told:
        return
    _told.add("gpus")
    text = f"experimental: {what} on several GPUs, which no machine has tried with libamp: compare a short training"
    warnings.warn(f"{text} with one on a single GPU", RuntimeWarning, stacklevel=3)
