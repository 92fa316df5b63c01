# SPDX-License-Identifier: Apache-2.0
"""torch.autocast and GradScaler of a GPU, on the CPU. Autocast uses float16 if this torch supports it on CPUs, else,
and with LIBAMP_BF16, bfloat16."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from .._environment import switch
from .devices import is_gpu, replace


def _has_float16() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return bool(torch.autocast("cpu", dtype=torch.float16)._enabled)
        except (RuntimeError, UserWarning):
            return False


def _autocast(half: torch.dtype) -> Callable[[Any], Any]:
    def make(own: Any) -> Callable[..., None]:
        def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
            if is_gpu(device_type):
                device_type, dtype = "cpu", half if dtype in (None, torch.float16) else dtype
            own(self, device_type, dtype, *args, **kwargs)

        return __init__

    return make


def _first(own: Any) -> Callable[..., Any]:
    """Wraps a method whose first argument is a device, by default a GPU."""
    return lambda self, device="cuda", *args, **kwargs: own(self, "cpu" if is_gpu(device) else device, *args, **kwargs)


def _off(own: Any) -> Callable[..., None]:
    """Disables a GradScaler that does not support CPU tensors, as torch does without a GPU."""
    return lambda self, *args, **kwargs: own(self, *args[:4], **kwargs | {"enabled": False})


def _of_cpu(own: Any) -> Callable[..., Any]:
    """Wraps custom_fwd and custom_bwd."""
    return lambda *args, **kwargs: own(*args, **kwargs | {"device_type": "cpu"})


def install() -> None:
    half = torch.float16 if _has_float16() and not switch("LIBAMP_BF16") else torch.bfloat16
    replace(torch.autocast, "__init__", _autocast(half))
    if hasattr(torch.amp, "GradScaler"):
        replace(torch.amp.GradScaler, "__init__", _first)
    else:
        replace(torch.cuda.amp.GradScaler, "__init__", _off)
    for name in ("custom_fwd", "custom_bwd"):
        replace(torch.amp, name, _of_cpu)
