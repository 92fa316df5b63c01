# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm with Apex's names and types. Plain ones return the type of the input, mixed ones that of the
weight. Under torch.autocast all arguments are first cast to its type. Sums are FP32 for all 16-bit types.
`memory_efficient` saves the output for backward instead of the input, because the next layer usually saves it too."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .. import fused_layer_norm_cuda
from .._autocast_utils import _autocast_dtype, _cast_if_autocast_enabled

Shape = int | Sequence[int]


def _shape(normalized_shape: Shape) -> tuple[int, ...]:
    if isinstance(normalized_shape, numbers.Integral):
        return (int(normalized_shape),)
    return tuple(normalized_shape)  # type: ignore[arg-type]


def _common(input: Any, *others: Any) -> list[Any]:
    """Returns the tensors in one type: their own if it is the same, else the widest, at least FP32."""
    given = [tensor for tensor in (input, *others) if tensor is not None]
    if all(tensor.dtype == input.dtype for tensor in given):
        return [input, *others]
    wide = torch.float64 if any(tensor.dtype == torch.float64 for tensor in given) else torch.float32
    return [None if tensor is None else tensor.to(wide) for tensor in (input, *others)]


class _FromOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, bias: Any, shape: Shape, eps: float, centered: bool, dtype: torch.dtype
    ) -> Any:
        ctx.shape, ctx.eps, ctx.centered = _shape(shape), eps, centered
        output, *_, invvar = fused_layer_norm_cuda.normalize(input, ctx.shape, weight, bias, eps, centered, dtype)
        ctx.save_for_backward(output, weight, bias, invvar)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        output, weight, bias, invvar = ctx.saved_tensors
        grads = fused_layer_norm_cuda.gradients(
            grad, None, invvar, output, ctx.shape, weight, bias, ctx.eps, True, ctx.centered
        )
        return (*grads, *[None] * (7 - len(grads)))


def _layer_norm(
    input: Any, weight: Any, bias: Any, shape: Shape, eps: float, from_output: bool, dtype: torch.dtype
) -> Any:
    if from_output:
        return _FromOutput.apply(input, weight, bias, shape, eps, True, dtype)
    x, w, b = _common(input, weight, bias)
    if x.dtype == torch.float16 and x.device.type == "cpu":  # torch 2.0 has none
        x, w, b = (None if tensor is None else tensor.float() for tensor in (x, w, b))
    return F.layer_norm(x, _shape(shape), w, b, eps).to(dtype)


def _rms_norm(input: Any, weight: Any, shape: Shape, eps: float, from_output: bool, dtype: torch.dtype) -> Any:
    if from_output:
        return _FromOutput.apply(input, weight, None, shape, eps, False, dtype)
    return manual_rms_norm(input, shape, weight, eps).to(dtype)


def manual_rms_norm(input: Any, normalized_shape: Shape, weight: Any, eps: float) -> Any:
    """Computes RMS norm by single operations, at least in FP32. Returns the type of its sums."""
    fused_layer_norm_cuda.check_shape(input, _shape(normalized_shape))
    x, w = _common(input, weight)
    x = x if x.dtype == torch.float64 else x.float()
    dims = tuple(range(-len(_shape(normalized_shape)), 0))
    x = x * torch.rsqrt((x * x).mean(dims, keepdim=True) + eps)
    return x if w is None else x * w.to(x.dtype)


# Apex's autograd functions. Scripts call their `apply`, which runs in the types that it receives.


class FusedLayerNormFunction:
    @staticmethod
    def apply(input: Any, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False) -> Any:
        return _layer_norm(input, None, None, normalized_shape, eps, memory_efficient, input.dtype)


class FusedLayerNormAffineFunction:
    @staticmethod
    def apply(
        input: Any, weight: Any, bias: Any, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
    ) -> Any:
        return _layer_norm(input, weight, bias, normalized_shape, eps, memory_efficient, input.dtype)


class FusedLayerNormAffineMixedDtypesFunction:
    @staticmethod
    def apply(
        input: Any, weight: Any, bias: Any, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
    ) -> Any:
        return _layer_norm(input, weight, bias, normalized_shape, eps, memory_efficient, weight.dtype)


class FusedRMSNormFunction:
    @staticmethod
    def apply(input: Any, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False) -> Any:
        return _rms_norm(input, None, normalized_shape, eps, memory_efficient, input.dtype)


class FusedRMSNormAffineFunction:
    @staticmethod
    def apply(
        input: Any, weight: Any, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
    ) -> Any:
        return _rms_norm(input, weight, normalized_shape, eps, memory_efficient, input.dtype)


class FusedRMSNormAffineMixedDtypesFunction:
    @staticmethod
    def apply(
        input: Any, weight: Any, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
    ) -> Any:
        return _rms_norm(input, weight, normalized_shape, eps, memory_efficient, weight.dtype)


def _obeys_autocast(apply: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(apply)
    def function(input: Any, *args: Any, **kwargs: Any) -> Any:
        device = input.device.type
        if _autocast_dtype(device) is None:
            return apply(input, *args, **kwargs)
        args = _cast_if_autocast_enabled(input, *args)
        kwargs = dict(zip(kwargs, _cast_if_autocast_enabled(*kwargs.values()), strict=True))
        with torch.autocast(device, enabled=False):
            return apply(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


fused_layer_norm = _obeys_autocast(FusedLayerNormFunction.apply, "fused_layer_norm")
fused_layer_norm_affine = _obeys_autocast(FusedLayerNormAffineFunction.apply, "fused_layer_norm_affine")
mixed_dtype_fused_layer_norm_affine = _obeys_autocast(
    FusedLayerNormAffineMixedDtypesFunction.apply, "mixed_dtype_fused_layer_norm_affine"
)
fused_rms_norm = _obeys_autocast(FusedRMSNormFunction.apply, "fused_rms_norm")
fused_rms_norm_affine = _obeys_autocast(FusedRMSNormAffineFunction.apply, "fused_rms_norm_affine")
mixed_dtype_fused_rms_norm_affine = _obeys_autocast(
    FusedRMSNormAffineMixedDtypesFunction.apply, "mixed_dtype_fused_rms_norm_affine"
)


class _Norm(torch.nn.Module):
    has_bias = True

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ):
        super().__init__()
        self.normalized_shape = torch.Size(_shape(normalized_shape))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        names = ("weight", "bias") if self.has_bias else ("weight",)
        for name in names:
            parameter = torch.nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.elementwise_affine:
            torch.nn.init.ones_(self.weight)
            if self.has_bias:
                torch.nn.init.zeros_(self.bias)

    def _how(self) -> tuple[Any, ...]:
        return self.normalized_shape, self.eps, self.memory_efficient

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_Norm):
    """Layer norm over the last dimensions. Returns the type of the input."""

    def forward(self, input: Any) -> Any:
        if not self.elementwise_affine:
            return fused_layer_norm(input, *self._how())
        return fused_layer_norm_affine(input, self.weight, self.bias, *self._how())


class FusedRMSNorm(_Norm):
    """Divides by the root mean square over the last dimensions. Returns the type of the input."""

    has_bias = False

    def forward(self, input: Any) -> Any:
        if not self.elementwise_affine:
            return fused_rms_norm(input, *self._how())
        return fused_rms_norm_affine(input, self.weight, *self._how())


class MixedFusedLayerNorm(FusedLayerNorm):
    """Layer norm that returns the type of the weight: FP32 for a 16-bit input and an FP32 weight."""

    def __init__(self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **kwargs: Any):
        _refuse_without_affine(type(self).__name__, kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input: Any) -> Any:
        return mixed_dtype_fused_layer_norm_affine(input, self.weight, self.bias, *self._how())


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMS norm that returns the type of the weight."""

    def __init__(self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **kwargs: Any):
        _refuse_without_affine(type(self).__name__, kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input: Any) -> Any:
        return mixed_dtype_fused_rms_norm_affine(input, self.weight, *self._how())


def _refuse_without_affine(name: str, kwargs: dict[str, Any]) -> None:
    if not kwargs.pop("elementwise_affine", True):
        raise RuntimeError(f"{name} has a weight, whose type it returns; elementwise_affine=False is for the plain one")
    if kwargs:
        raise TypeError(f"{name}() got an unexpected keyword argument {next(iter(kwargs))!r}")
