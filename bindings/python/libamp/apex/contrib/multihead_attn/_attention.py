# SPDX-License-Identifier: Apache-2.0
"""Common parts of self attention and encoder-decoder attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...normalization import FusedLayerNorm
from ...normalization.fused_layer_norm import fused_layer_norm_affine
from .mask_softmax_dropout_func import masked


class MultiheadAttn(nn.Module):
    """Base class of the attention modules.

    impl: "fast" uses torch's scaled_dot_product_attention, "default" its single operations. include_norm_add: bool, a
    layer norm of the query before, dropout and the sum with the query after.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float, bias: bool, include_norm_add: bool, impl: str
    ) -> None:
        super().__init__()
        if impl not in ("fast", "default"):
            raise ValueError(f"{type(self).__name__}: impl is 'fast' or 'default', not {impl!r}")
        if embed_dim % num_heads:
            raise ValueError(f"{type(self).__name__}: embed_dim {embed_dim} must be divisible by num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.bias, self.include_norm_add, self.impl = bias, include_norm_add, impl

    def _make(self, biased: bool, **rows: int) -> None:
        """Makes parameters by name, None for an absent bias."""
        for name, count in rows.items():
            shape = (count,) if "bias" in name else (count, self.embed_dim)
            wanted = biased or "bias" not in name
            self.register_parameter(name, nn.Parameter(torch.empty(shape)) if wanted else None)

    def _make_norm(self) -> None:
        if self.include_norm_add and self.impl == "fast":
            self.lyr_nrm_gamma_weights = nn.Parameter(torch.empty(self.embed_dim))
            self.lyr_nrm_beta_weights = nn.Parameter(torch.empty(self.embed_dim))
        elif self.include_norm_add:
            self.lyr_nrm = FusedLayerNorm(self.embed_dim)

    def reset_parameters(self, **gains: float) -> None:
        """Initializes the parameters. gains: of weights that stack several square matrices."""
        for name, param in self.named_parameters(recurse=False):
            if name.startswith("lyr_nrm"):
                nn.init.constant_(param, 1.0 if "gamma" in name else 0.0)
            elif "bias" in name:
                nn.init.zeros_(param)
            else:
                nn.init.xavier_uniform_(param, gain=gains.get(name, 1.0))
        if self.include_norm_add and self.impl == "default":
            self.lyr_nrm.reset_parameters()

    def _normed(self, query: torch.Tensor) -> torch.Tensor:
        if not self.include_norm_add:
            return query
        if self.impl == "default":
            normed: torch.Tensor = self.lyr_nrm(query)
            return normed
        gamma, beta = self.lyr_nrm_gamma_weights, self.lyr_nrm_beta_weights
        return fused_layer_norm_affine(query, gamma, beta, (self.embed_dim,), 1e-5)

    def _split(self, projected: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
        """Splits [time, batch, heads * parts * head_dim] into parts of [batch, heads, time, head_dim]."""
        time, batch, _ = projected.shape
        heads = projected.view(time, batch, self.num_heads, parts, self.head_dim)
        return heads.permute(3, 1, 2, 0, 4).unbind(0)

    def _mask(self, key_padding_mask: Any, attn_mask: Any) -> torch.Tensor | None:
        if key_padding_mask is not None and attn_mask is not None:
            raise ValueError(f"{type(self).__name__}: key_padding_mask or attn_mask, not both")
        if attn_mask is not None and (attn_mask.dim() != 2):
            raise ValueError(f"attn_mask is [queries, keys], and has the shape {tuple(attn_mask.shape)}")
        mask: torch.Tensor | None = attn_mask
        return mask if key_padding_mask is None else key_padding_mask[:, None, None]

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, additive: bool, is_training: bool
    ) -> torch.Tensor:
        dropout = self.dropout if is_training else 0.0
        if self.impl == "fast":
            allowed = mask if mask is None else mask.to(q.dtype) if additive else ~mask.to(torch.bool)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout)
        else:
            scores = masked(torch.matmul(q * self.scaling, k.transpose(-1, -2)), mask, additive)
            mixed = torch.matmul(F.dropout(F.softmax(scores, dim=-1), dropout), v)
        return mixed.permute(2, 0, 1, 3).flatten(2)

    def _out(self, mixed: torch.Tensor, query: torch.Tensor, is_training: bool) -> tuple[torch.Tensor, None]:
        output = F.linear(mixed, self.out_proj_weight, self.out_proj_bias)
        if self.include_norm_add:
            output = query + F.dropout(output, self.dropout, training=is_training)
        return output, None
