# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def _check(logits: Any, targets: Any, positives: Any, classes: int) -> None:
    if logits[:-1] != targets or logits[-1] < classes:
        raise RuntimeError(
            f"focal_loss: targets of {list(targets)}, of {classes} classes, want logits of {[*targets, classes]}, or "
            f"more classes that are padding, not {list(logits)}"
        )
    if positives.numel() != 1:
        raise RuntimeError(f"focal_loss: num_positive_sum is one number, not {positives.numel()}")


def focal_loss(
    cls_output: Any,
    cls_targets_at_level: Any,
    num_positive_sum: Any,
    num_real_classes: int,
    alpha: float,
    gamma: float,
    label_smoothing: float = 0.0,
) -> Any:
    """Returns the sum of the focal loss of logits [..., classes], divided by the number of positive matches, at least
    in FP32. Targets [...] are classes. -1 matches none, -2 is ignored. Classes from num_real_classes on are padding."""
    _check(cls_output.shape, cls_targets_at_level.shape, num_positive_sum, num_real_classes)
    logits = cls_output[..., :num_real_classes]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    target = cls_targets_at_level.unsqueeze(-1)
    match = (target == torch.arange(num_real_classes, device=target.device)).to(logits.dtype)
    wanted = match * (1.0 - label_smoothing) + label_smoothing / 2
    missed = F.logsigmoid(logits * (1 - 2 * match))  # the logarithm of the error of the prediction
    weight = (1.0 - alpha + (2.0 * alpha - 1.0) * match) * torch.exp(gamma * missed)
    losses = weight * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return losses.masked_fill(target == -2, 0).sum() / num_positive_sum.reshape(())


class FocalLoss:
    """Apex's autograd function. Scripts call its `apply`."""

    apply = staticmethod(focal_loss)
