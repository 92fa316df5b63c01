# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.clip_grad: torch's clip_grad_norm_, with the L2 norm of 16-bit gradients summed in double."""

from .clip_grad import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
