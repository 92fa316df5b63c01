# SPDX-License-Identifier: Apache-2.0
"""apex.amp.opt."""
from libamp.torch.amp.old_api import OptimWrapper

__all__ = ["OptimWrapper"]
