# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.group_norm: group norm with a SiLU behind it."""

from .group_norm import GroupNorm

__all__ = ["GroupNorm"]
