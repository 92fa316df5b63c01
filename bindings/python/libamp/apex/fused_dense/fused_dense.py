# SPDX-License-Identifier: Apache-2.0
"""Apex's dense layers on torch's linear, so that amp's casts apply. GELU is the tanh approximation, as in cuBLASLt's
epilogue."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

# Apex's autograd functions. Scripts call their `apply`.


class FusedDenseFunc:
    @staticmethod
    def apply(input: Any, weight: Any, bias: Any) -> Any:
        return F.linear(input, weight, bias)


class DenseNoBiasFunc:
    @staticmethod
    def apply(input: Any, weight: Any) -> Any:
        return F.linear(input, weight)


class FusedDenseGeluDenseFunc:
    @staticmethod
    def apply(input: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> Any:
        return F.linear(F.gelu(F.linear(input, weight1, bias1), approximate="tanh"), weight2, bias2)


_fused_dense = FusedDenseFunc.apply
_dense_no_bias = DenseNoBiasFunc.apply
_fused_dense_gelu_dense = FusedDenseGeluDenseFunc.apply


def _reset(weight: Any, bias: Any) -> None:
    """Initializes weight and bias as torch.nn.Linear does."""
    torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(weight.shape[1])
        torch.nn.init.uniform_(bias, -bound, bound)


class FusedDense(torch.nn.Module):
    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features))
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out_features)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _reset(self.weight, self.bias)

    def forward(self, input: Any) -> Any:
        if self.bias is None:
            return _dense_no_bias(input, self.weight)
        return _fused_dense(input, self.weight, self.bias)


class FusedDenseGeluDense(torch.nn.Module):
    def __init__(self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True):
        super().__init__()
        if not bias:
            raise AssertionError("FusedDenseGeluDense has biases: without them use FusedDense(bias=False) twice")
        self.in_features = in_features
        self.intermediate_features = intermediate_features
        self.out_features = out_features
        self.weight1 = torch.nn.Parameter(torch.empty(intermediate_features, in_features))
        self.bias1 = torch.nn.Parameter(torch.empty(intermediate_features))
        self.weight2 = torch.nn.Parameter(torch.empty(out_features, intermediate_features))
        self.bias2 = torch.nn.Parameter(torch.empty(out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _reset(self.weight1, self.bias1)
        _reset(self.weight2, self.bias2)

    def forward(self, input: Any) -> Any:
        return _fused_dense_gelu_dense(input, self.weight1, self.bias1, self.weight2, self.bias2)
