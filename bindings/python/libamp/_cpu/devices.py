# SPDX-License-Identifier: Apache-2.0
"""Recognises GPU devices and replaces them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")


def is_gpu(device: Any) -> bool:
    """Returns True for a GPU. A number is one, as in torch."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def placed(device: Any) -> Any:
    """Returns the CPU for a GPU, else the device itself."""
    return CPU if is_gpu(device) else device


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Replaces owner's attribute by make(attribute), once, if it exists. Returns the present attribute."""
    own = getattr(owner, name, None)
    if own is None or hasattr(own, "__libamp_cpu__"):
        return own
    new: Any = functools.wraps(own)(make(own))
    new.__libamp_cpu__ = True
    inside = isinstance(owner, type)  # pickle uses these names
    new.__module__ = owner.__module__ if inside else owner.__name__
    new.__qualname__ = f"{owner.__qualname__}.{name}" if inside else name
    setattr(owner, name, new)
    return new
