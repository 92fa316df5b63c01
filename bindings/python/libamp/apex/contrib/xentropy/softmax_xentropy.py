# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch

from ... import xentropy_cuda


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    """Computes a loss for each label: apply(logits, labels, smoothing, padding_idx, half_to_float). Losses are FP32,
    and 0 where the label is padding_idx, which need not be a class."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Any,
        labels: Any,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> Any:
        padding = labels == padding_idx
        losses, max_log_sum_exp = xentropy_cuda.forward(logits, labels.masked_fill(padding, 0), smoothing)
        ctx.save_for_backward(logits, labels, max_log_sum_exp)
        ctx.smoothing, ctx.padding_idx = smoothing, padding_idx
        return losses.masked_fill_(padding, 0)

    @staticmethod
    def backward(ctx: Any, grad_loss: Any) -> Any:
        logits, labels, max_log_sum_exp = ctx.saved_tensors
        if torch.is_grad_enabled():  # the saved sum has no graph to its logits
            max_log_sum_exp = torch.logsumexp(logits.to(max_log_sum_exp.dtype), -1)
        padding = labels == ctx.padding_idx
        grads = xentropy_cuda.backward(
            grad_loss.masked_fill(padding, 0), logits, max_log_sum_exp, labels.masked_fill(padding, 0), ctx.smoothing
        )
        return grads, None, None, None, None
