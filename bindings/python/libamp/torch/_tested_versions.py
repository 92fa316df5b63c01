# SPDX-License-Identifier: Apache-2.0
"""The versions with which libamp was tested. The warnings below, docs/start/install.md and the tests use this list."""
from __future__ import annotations

import re
import warnings
from typing import Any

TORCH = ((2, 0), (2, 15))  # the oldest and the newest PyTorch
SEVERAL_GPUS = False  # no machine with several GPUs has run it
RANDOM_ON_GPU = False  # no GPU has run the kernels that round at random

_told: set[str] = set()


def outside(version: str) -> str:
    """Describes the untested properties of this version of PyTorch. Empty for a tested one."""
    found = re.match(r"(\d+)\.(\d+)", version)
    oldest, newest = TORCH
    if found is not None and oldest <= (int(found[1]), int(found[2])) <= newest:
        return ""
    tried = " to ".join(f"{major}.{minor}" for major, minor in TORCH)
    return f"libamp was tried with PyTorch {tried}, and this is {version}"


def check(version: str) -> None:
    """Warns once, at import, of a PyTorch outside of the range."""
    if text := outside(version):
        text += ": if a training goes wrong, look at amp.health() first"
        warnings.warn(text, RuntimeWarning, stacklevel=4)  # the line that imports libamp.torch


def several_gpus(what: str, device: Any, ranks: int) -> None:
    """Warns once in a process if ranks on GPUs work together with libamp's own code."""
    if SEVERAL_GPUS or ranks < 2 or getattr(device, "type", "cpu") == "cpu" or "gpus" in _told:
        return
    _told.add("gpus")
    text = f"experimental: {what} on several GPUs, which no machine has tried with libamp: compare a short training"
    warnings.warn(f"{text} with one on a single GPU", RuntimeWarning, stacklevel=3)


def rounding_on_gpu(what: str, device: Any) -> None:
    """Warns once in a process if a GPU steps with state that is rounded at random."""
    if RANDOM_ON_GPU or device.type == "cpu" or "random" in _told:
        return
    _told.add("random")
    text = f"experimental: {what} on a GPU, which no GPU has run so far: compare a short training with one without"
    warnings.warn(text, RuntimeWarning, stacklevel=3)
