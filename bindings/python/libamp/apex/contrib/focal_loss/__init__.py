# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.focal_loss. The name focal_loss in it is the module of the function."""

from . import focal_loss

__all__ = ["focal_loss"]
