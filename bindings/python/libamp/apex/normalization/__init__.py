# SPDX-License-Identifier: Apache-2.0
"""apex.normalization on torch's own normalization. An installed Apex keeps its kernels instead."""

from .fused_layer_norm import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm

__all__ = ["FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"]
