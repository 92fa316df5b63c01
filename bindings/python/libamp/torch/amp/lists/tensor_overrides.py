# SPDX-License-Identifier: Apache-2.0
"""Lists of torch.Tensor. BFLOAT16_FUNCS (ROCm's fork) is FP16_FUNCS: the level selects the type."""
import torch

from ._classes import FP32, LOWER, PROMOTE, SEQUENCE, TENSOR, names

MODULE = torch.Tensor
FP16_FUNCS = BFLOAT16_FUNCS = names(TENSOR, LOWER)
FP32_FUNCS = names(TENSOR, FP32)
CASTS = names(TENSOR, PROMOTE)
SEQUENCE_CASTS = names(TENSOR, SEQUENCE)
