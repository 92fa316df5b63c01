# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_sgd."""

from libamp.torch.optimizers import FusedSGD

__all__ = ["FusedSGD"]
