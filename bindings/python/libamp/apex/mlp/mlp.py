# SPDX-License-Identifier: Apache-2.0
"""Apex's MLP on torch's linear, so that amp's casts apply. The last layer has the activation too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

_ACTIVATIONS = ("none", "relu", "sigmoid")  # Apex's numbers are their indices


class MlpFunction:
    """Apex's autograd function. `apply` takes input, weights, then biases if there are any."""

    @staticmethod
    def apply(bias: int, activation: int, *args: Any) -> Any:
        x, *parameters = args
        layers = len(parameters) // 2 if bias else len(parameters)
        weights, biases = parameters[:layers], parameters[layers:] or [None] * layers
        for weight, b in zip(weights, biases, strict=True):
            x = F.linear(x, weight, b)
            if activation:
                x = torch.relu(x) if activation == 1 else torch.sigmoid(x)
        return x


mlp_function = MlpFunction.apply


class MLP(torch.nn.Module):
    """Linear layers with the given sizes: MLP([480, 1024, 1]) has two layers. bias: bool, for all layers. activation:
    "none", "relu" or "sigmoid"."""

    def __init__(self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu"):
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise TypeError(f"MLP: activation must be one of {', '.join(_ACTIVATIONS)}, not {activation!r}")
        self.num_layers = len(mlp_sizes) - 1
        self.mlp_sizes = list(mlp_sizes)
        self.bias = 1 if bias else 0
        self.activation = _ACTIVATIONS.index(activation)
        for i, (width, height) in enumerate(itertools.pairwise(mlp_sizes)):
            setattr(self, f"weight_{i}", torch.nn.Parameter(torch.empty(height, width)))
            if bias:
                setattr(self, f"bias_{i}", torch.nn.Parameter(torch.empty(height)))
        self.reset_parameters()

    def _layers(self, kind: str) -> list[Any]:
        return [getattr(self, f"{kind}_{i}") for i in range(self.num_layers)]

    # Looked up at each call, because a parameter may be replaced.
    @property
    def weights(self) -> list[Any]:
        return self._layers("weight")

    @property
    def biases(self) -> list[Any]:
        return self._layers("bias") if self.bias else []

    def reset_parameters(self) -> None:
        for weight in self.weights:
            torch.nn.init.normal_(weight, 0.0, math.sqrt(2.0 / sum(weight.shape)))
        for bias in self.biases:
            torch.nn.init.normal_(bias, 0.0, math.sqrt(1.0 / bias.shape[0]))

    def forward(self, input: Any) -> Any:
        return mlp_function(self.bias, self.activation, input, *self.weights, *self.biases)

    def extra_repr(self) -> str:
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"
