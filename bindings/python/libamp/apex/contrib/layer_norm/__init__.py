# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.layer_norm: layer norm that returns its weight's type."""

from .layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
