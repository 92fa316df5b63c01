# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_lamb."""

from ...optimizers import FusedLAMB

__all__ = ["FusedLAMB"]
