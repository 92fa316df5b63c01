# SPDX-License-Identifier: Apache-2.0
"""torch.Tensor's. BFLOAT16_FUNCS (ROCm's fork) is FP16_FUNCS: the level says which of the two types."""
import torch

from ._classes import FP32, LOWER, PROMOTE, SEQUENCE, TENSOR, names

MODULE = torch.Tensor
FP16_FUNCS = BFLOAT16_FUNCS = names(TENSOR, LOWER)
FP32_FUNCS = names(TENSOR, FP32)
CASTS = names(TENSOR, PROMOTE)
SEQUENCE_CASTS = names(TENSOR, SEQUENCE)
