# SPDX-License-Identifier: Apache-2.0
"""apex._autocast_utils: casts for functions that torch.autocast does not know, for tensors on any device."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["_cast_if_autocast_enabled"]


def _autocast_dtype(device: str) -> torch.dtype | None:
    """Returns the type of torch.autocast on this kind of device, None outside of it."""
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        known = torch.amp.is_autocast_available(device)
        return torch.get_autocast_dtype(device) if known and torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if device == "cuda" and torch.is_autocast_enabled() else None


def _get_autocast_dtypes() -> Sequence[torch.dtype]:
    bf16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
    return [torch.float16, torch.bfloat16] if bf16 else [torch.float16]


def _get_current_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    return _autocast_dtype("cuda") or _autocast_dtype("cpu") or torch.float32


def _cast(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return value
    dtype = _autocast_dtype(value.device.type)
    return value if dtype is None else value.to(dtype)


def _cast_if_autocast_enabled(*args: Any) -> tuple[Any, ...]:
    """Returns the arguments. Floating tensors except FP64 are cast to the active autocast type of their device."""
    return tuple(_cast(value) for value in args)
