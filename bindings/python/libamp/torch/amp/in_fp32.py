# SPDX-License-Identifier: Apache-2.0
"""Ops of the FP32 lists whose CUDA kernels read 16 bits and compute in FP32 by themselves. They need no FP32 copy of
the argument and its gradient. The result equals that of the copy except for the order of sums. torch's softmax kernels
support this with FP16 only: for BF16 torch makes the copy.

torch.autocast does the same for ops with an argument dtype. Its cross_entropy computes log_softmax in 16 bits, here it
is FP32, as the lists require. Each function takes the arguments of its original, and returns NotImplemented for a call
that needs the cast.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

_TAKE_DTYPE = ("softmax", "log_softmax", "softmin", "sum")  # derivatives of prod, cumsum and cumprod would round


def _by_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        if kwargs.get("out") is not None or any(isinstance(arg, torch.dtype) for arg in args):
            return NotImplemented
        if dtype is not None:
            return original(*args, **kwargs) if dtype is torch.float32 else NotImplemented
        return original(*args, **{**kwargs, "dtype": torch.float32})

    return call


def _cross_entropy(
    input: torch.Tensor,  # torch's name
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Computes cross entropy for class targets. Probabilities and smoothed labels are left to torch."""
    if size_average is not None or reduce is not None or label_smoothing != 0 or input.dim() == 0:
        return NotImplemented
    if not isinstance(target, torch.Tensor) or target.is_floating_point() or target.shape == input.shape:
        return NotImplemented
    if weight is not None and not (isinstance(weight, torch.Tensor) and weight.is_floating_point()):
        return NotImplemented
    logs = torch.log_softmax(input, 1 if input.dim() > 1 else 0, dtype=torch.float32)
    weight = weight if weight is None else weight.float()
    return F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)


def in_fp32(place: str, name: str, original: Callable[..., Any]) -> Callable[..., Any] | None:
    """Returns the replacement of `original`, found under this name, for 16-bit arguments on CUDA, or None to use
    casts."""
    if name == "cross_entropy" and place == "torch.nn.functional":
        return _cross_entropy
    return _by_dtype(original) if name in _TAKE_DTYPE else None
