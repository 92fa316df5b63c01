# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_adam."""

from ...optimizers import FusedAdam

__all__ = ["FusedAdam"]
