# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.multihead_attn.mask_softmax_dropout_func."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["fast_mask_softmax_dropout_func"]


def masked(scores: torch.Tensor, mask: torch.Tensor | None, additive: bool) -> torch.Tensor:
    """Returns masked scores. mask: of keys [batch, keys], or of times [queries, keys] if scores are [batch, heads,
    queries, keys]."""
    if mask is None:
        return scores
    return scores + mask.to(scores.dtype) if additive else scores.masked_fill(mask.to(torch.bool), float("-inf"))


def fast_mask_softmax_dropout_func(
    is_training: bool,
    heads: int,
    inputs: torch.Tensor,
    pad_mask: torch.Tensor | None,
    mask_additive: bool,
    dropout_prob: float,
) -> torch.Tensor:
    """Returns dropout of the softmax of scores [batch * heads, queries, keys], masked by pad_mask [batch, keys]."""
    scores = inputs.view(-1, heads, *inputs.shape[1:])
    mask = None if pad_mask is None else pad_mask[:, None, None]
    weights = F.softmax(masked(scores, mask, mask_additive), dim=-1).view(inputs.shape)
    return F.dropout(weights, dropout_prob, training=is_training)
