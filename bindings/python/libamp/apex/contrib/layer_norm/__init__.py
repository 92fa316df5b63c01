# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.layer_norm: layer norm that returns the type of its weight."""

from .layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
