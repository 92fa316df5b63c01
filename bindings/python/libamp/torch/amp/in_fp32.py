# SPDX-License-Identifier: Apache-2.0
"""Ops of the FP32 lists whose kernels on CUDA read 16 bits and compute in FP32 by themselves: no FP32 copy of the
argument is written and read again, and none of its gradient. What they compute is what the copy would give, but for
the order in which a kernel adds. torch's kernels of softmax do so with FP16 alone: of BF16 torch makes the copy.

torch.autocast does the same for those that take a dtype. Its cross_entropy computes log_softmax in 16 bits; here it is
FP32, as the lists say. Each function takes what its original takes, and returns NotImplemented for what needs the cast.
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
    """Of classes; probabilities and smoothed labels are left to torch's."""
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
    """What stands for `original`, found under this name, where its argument has 16 bits on CUDA; None: casts do."""
    if name == "cross_entropy" and place == "torch.nn.functional":
        return _cross_entropy
    return _by_dtype(original) if name in _TAKE_DTYPE else None
