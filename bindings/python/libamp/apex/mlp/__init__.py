# SPDX-License-Identifier: Apache-2.0
"""apex.mlp: a sequence of linear layers, each with its activation."""

from .mlp import MLP, MlpFunction, mlp_function

__all__ = ["MLP", "MlpFunction", "mlp_function"]
