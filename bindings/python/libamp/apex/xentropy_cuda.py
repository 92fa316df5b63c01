# SPDX-License-Identifier: Apache-2.0
"""Apex's compiled module xentropy_cuda, on any device: softmax cross entropy that saves the logarithm of each row's sum
for backward, instead of probabilities. Sums and losses are FP32, for FP64 logits FP64."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["backward", "forward"]


def _type(logits: Any) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def forward(logits: Any, labels: Any, smoothing: float, half_to_float: bool = False) -> list[Any]:
    """Returns [losses, max_log_sum_exp] of each row. A loss is minus the log probability of the label, with `smoothing`
    of the mean of all classes. max_log_sum_exp is the logarithm of the sum of exponentials. half_to_float is
    ignored."""
    if labels.shape != logits.shape[:-1]:
        shapes = list(logits.shape), list(labels.shape)
        raise RuntimeError("xentropy: logits of {} want a label for each row, not {}".format(*shapes))
    logs = torch.log_softmax(logits, -1, dtype=_type(logits))
    losses = (smoothing - 1.0) * logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if smoothing:  # where it is 0, a logit of minus infinity is a class that is never chosen
        losses = losses - smoothing * logs.mean(-1)
    return [losses, logits.amax(-1) - logs.amax(-1)]


def backward(grad_loss: Any, logits: Any, max_log_sum_exp: Any, labels: Any, smoothing: float) -> Any:
    """Returns the gradient of the logits, in their type: probabilities minus the smoothed label."""
    grads = torch.sub(logits, max_log_sum_exp.unsqueeze(-1))
    grads = grads.exp().clone() if torch.is_grad_enabled() else grads.exp_()  # exp keeps its result for its derivative
    if smoothing:
        grads -= smoothing / logits.shape[-1]
    index = labels.unsqueeze(-1)
    grads.scatter_add_(-1, index, torch.full_like(index, smoothing - 1.0, dtype=grads.dtype))
    grads *= grad_loss.unsqueeze(-1)
    return grads.to(logits.dtype)
