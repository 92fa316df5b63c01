# SPDX-License-Identifier: Apache-2.0
"""apex.fused_dense: a linear layer, and two of them with a GELU between."""

from .fused_dense import (
    DenseNoBiasFunc,
    FusedDense,
    FusedDenseFunc,
    FusedDenseGeluDense,
    FusedDenseGeluDenseFunc,
)

__all__ = ["DenseNoBiasFunc", "FusedDense", "FusedDenseFunc", "FusedDenseGeluDense", "FusedDenseGeluDenseFunc"]
