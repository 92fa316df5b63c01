# SPDX-License-Identifier: Apache-2.0
"""Apex's FastLayerNorm: MixedFusedLayerNorm under another name, of any width."""

from __future__ import annotations

from typing import Any

import torch

from ...normalization.fused_layer_norm import (
    FusedLayerNormAffineMixedDtypesFunction,
    mixed_dtype_fused_layer_norm_affine,
)


class FastLayerNormFN:
    @staticmethod
    def apply(x: Any, gamma: Any, beta: Any, epsilon: float, memory_efficient: bool = False) -> Any:
        return FusedLayerNormAffineMixedDtypesFunction.apply(x, gamma, beta, gamma.shape, epsilon, memory_efficient)


def _fast_layer_norm(x: Any, weight: Any, bias: Any, epsilon: float, memory_efficient: bool = False) -> Any:
    return mixed_dtype_fused_layer_norm_affine(x, weight, bias, weight.shape, epsilon, memory_efficient)


class FastLayerNorm(torch.nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False):
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))
        self.bias = torch.nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Any) -> Any:
        return _fast_layer_norm(x, self.weight, self.bias, self.epsilon, self.memory_efficient)
