# SPDX-License-Identifier: Apache-2.0
"""Lists of torch.nn.functional. BFLOAT16_FUNCS (ROCm's fork) is FP16_FUNCS: the level selects the type."""
import torch

from ._classes import BANNED, FP32, FUNCTIONAL, LOWER, names

MODULE = torch.nn.functional
FP16_FUNCS = BFLOAT16_FUNCS = names(FUNCTIONAL, LOWER)
FP32_FUNCS = names(FUNCTIONAL, FP32)
BANNED_FUNCS = [(name, f"{name} refuses 16-bit arguments at O1 and O4") for name in names(FUNCTIONAL, BANNED)]
