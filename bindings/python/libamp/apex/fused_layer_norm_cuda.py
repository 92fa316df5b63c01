# SPDX-License-Identifier: Apache-2.0
"""Apex's compiled module fused_layer_norm_cuda, on any device: layer norm and RMS norm, forward and backward.

mean and invvar have an element for each normalized row, in FP32, for FP64 inputs in FP64. The arithmetic has that type.
memory_efficient: backward receives the output of forward instead of its input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

__all__ = [
    "backward", "backward_affine", "forward", "forward_affine", "forward_affine_mixed_dtypes", "rms_backward",
    "rms_backward_affine", "rms_forward", "rms_forward_affine", "rms_forward_affine_mixed_dtypes",
]

_Shape = Sequence[int]


def check_shape(input: Any, shape: _Shape) -> None:
    if tuple(input.shape[-len(shape) :]) != tuple(shape):
        wanted = ", ".join(map(str, ("*", *shape)))
        raise RuntimeError(f"normalization over {list(shape)} wants inputs of [{wanted}], not {list(input.shape)}")


def _rows(tensor: Any, shape: _Shape) -> Any:
    """Returns the tensor with one row for each normalization, in the type of its sums."""
    tensor = tensor if tensor.dtype == torch.float64 else tensor.float()
    return tensor.reshape(-1, math.prod(shape))


def normalize(input: Any, shape: _Shape, weight: Any, bias: Any, eps: float, centered: bool, dtype: Any) -> list[Any]:
    """Returns [output, mean, invvar], without mean if not centered."""
    check_shape(input, shape)
    x = _rows(input, shape)
    mean = x.mean(-1) if centered else None
    x = x if mean is None else x - mean.unsqueeze(-1)
    invvar = torch.rsqrt(x.square().mean(-1) + eps)
    y = x * invvar.unsqueeze(-1)
    y = y if weight is None else y * _rows(weight, shape)
    y = y if bias is None else y + _rows(bias, shape)
    return [y.reshape(input.shape).to(dtype), *([] if mean is None else [mean]), invvar]


def _normalized(y: Any, shape: _Shape, weight: Any, bias: Any, eps: float) -> Any:
    """Returns the normalized value before weight and bias, computed from the output. Weights count as at least eps away
    from 0."""
    rows = _rows(y, shape)
    if weight is None:
        return rows
    w = _rows(weight, shape)
    w = torch.where(w < 0, w.clamp(max=-eps), w.clamp(min=eps))
    return (rows if bias is None else rows - _rows(bias, shape)) / w


def gradients(
    grad: Any, mean: Any, invvar: Any, kept: Any, shape: _Shape, weight: Any, bias: Any, eps: float, of_output: bool,
    centered: bool,
) -> list[Any]:
    """Returns the gradients of input, weight and bias, the latter two if they exist."""
    if of_output:
        x = _normalized(kept, shape, weight, bias, eps)
    else:
        x = (_rows(kept, shape) - (mean.unsqueeze(-1) if centered else 0)) * invvar.unsqueeze(-1)
    g = _rows(grad, shape)
    inner = g if weight is None else g * _rows(weight, shape)
    moved = inner - x * (inner * x).mean(-1, keepdim=True)
    moved = moved - inner.mean(-1, keepdim=True) if centered else moved
    grads = [(moved * invvar.unsqueeze(-1)).reshape(kept.shape).to(kept.dtype)]
    if weight is not None:
        grads.append((g * x).sum(0).reshape(weight.shape).to(weight.dtype))
    if bias is not None:
        grads.append(g.sum(0).reshape(bias.shape).to(bias.dtype))
    return grads


def forward(input: Any, normalized_shape: _Shape, eps: float) -> list[Any]:
    return normalize(input, normalized_shape, None, None, eps, True, input.dtype)


def forward_affine(input: Any, normalized_shape: _Shape, weight: Any, bias: Any, eps: float) -> list[Any]:
    return normalize(input, normalized_shape, weight, bias, eps, True, input.dtype)


def forward_affine_mixed_dtypes(input: Any, normalized_shape: _Shape, weight: Any, bias: Any, eps: float) -> list[Any]:
    return normalize(input, normalized_shape, weight, bias, eps, True, weight.dtype)


def rms_forward(input: Any, normalized_shape: _Shape, eps: float) -> list[Any]:
    return normalize(input, normalized_shape, None, None, eps, False, input.dtype)


def rms_forward_affine(input: Any, normalized_shape: _Shape, weight: Any, eps: float) -> list[Any]:
    return normalize(input, normalized_shape, weight, None, eps, False, input.dtype)


def rms_forward_affine_mixed_dtypes(input: Any, normalized_shape: _Shape, weight: Any, eps: float) -> list[Any]:
    return normalize(input, normalized_shape, weight, None, eps, False, weight.dtype)


def backward(
    grad: Any, mean: Any, invvar: Any, kept: Any, normalized_shape: _Shape, eps: float, memory_efficient: bool = False
) -> Any:
    return gradients(grad, mean, invvar, kept, normalized_shape, None, None, eps, memory_efficient, True)[0]


def backward_affine(
    grad: Any, mean: Any, invvar: Any, kept: Any, normalized_shape: _Shape, weight: Any, bias: Any, eps: float,
    memory_efficient: bool = False,
) -> list[Any]:
    return gradients(grad, mean, invvar, kept, normalized_shape, weight, bias, eps, memory_efficient, True)


def rms_backward(
    grad: Any, invvar: Any, kept: Any, normalized_shape: _Shape, eps: float, memory_efficient: bool = False
) -> Any:
    return gradients(grad, None, invvar, kept, normalized_shape, None, None, eps, memory_efficient, False)[0]


def rms_backward_affine(
    grad: Any, invvar: Any, kept: Any, normalized_shape: _Shape, weight: Any, eps: float, memory_efficient: bool = False
) -> list[Any]:
    return gradients(grad, None, invvar, kept, normalized_shape, weight, None, eps, memory_efficient, False)
