# SPDX-License-Identifier: Apache-2.0
"""apex.amp.handle: scale_loss and the old API under the names that scripts import."""
from libamp.torch.amp._casting import disable_casts
from libamp.torch.amp.loss_scaling import ScaledLoss, scale, scale_loss, unscale
from libamp.torch.amp.old_api import AmpHandle, NoOpHandle

__all__ = ["AmpHandle", "NoOpHandle", "ScaledLoss", "disable_casts", "scale", "scale_loss", "unscale"]
