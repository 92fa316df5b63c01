# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers: the names of Apex's first fused optimizers and their FP16_Optimizer, with today's classes.
DistributedFusedAdam and DistributedFusedLAMB are in modules of their names."""

from libamp.torch.fp16_utils import FP16_Optimizer
from libamp.torch.optimizers import FusedLAMB, FusedSGD

from .fused_adam import FusedAdam

__all__ = ["FP16_Optimizer", "FusedAdam", "FusedLAMB", "FusedSGD"]
