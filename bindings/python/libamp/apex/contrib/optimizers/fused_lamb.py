# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_lamb."""

from libamp.torch.optimizers import FusedLAMB

__all__ = ["FusedLAMB"]
