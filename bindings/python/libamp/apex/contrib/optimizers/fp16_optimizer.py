# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fp16_optimizer."""

from libamp.torch.fp16_utils import FP16_Optimizer

__all__ = ["FP16_Optimizer"]
