# SPDX-License-Identifier: Apache-2.0
"""Lists of torch. BFLOAT16_FUNCS (ROCm's fork) is FP16_FUNCS: the level selects the type."""
import torch

from ._classes import FP32, LOWER, PROMOTE, SEQUENCE, TORCH, names

MODULE = torch
FP16_FUNCS = BFLOAT16_FUNCS = names(TORCH, LOWER)
FP32_FUNCS = names(TORCH, FP32)
CASTS = names(TORCH, PROMOTE)
SEQUENCE_CASTS = names(TORCH, SEQUENCE)
