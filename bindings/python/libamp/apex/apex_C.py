# SPDX-License-Identifier: Apache-2.0
"""What the compiled module apex_C of Apex had: dense tensors as one, and one as many."""

from libamp.torch.parallel.flat import flatten, unflatten

__all__ = ["flatten", "unflatten"]
