# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.group_norm: group norm followed by SiLU."""

from .group_norm import GroupNorm

__all__ = ["GroupNorm"]
