# SPDX-License-Identifier: Apache-2.0
"""Apex's compiled module apex_C: flattens dense tensors into one, and back."""

from libamp.torch.parallel.flat import flatten, unflatten

__all__ = ["flatten", "unflatten"]
