# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.multihead_attn.encdec_multihead_attn."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ._attention import MultiheadAttn

__all__ = ["EncdecMultiheadAttn"]


class EncdecMultiheadAttn(MultiheadAttn):
    """Attention from one sequence [queries, batch, embed_dim] to another. in_proj_weight_kv has the rows of k and v of
    the first head, then of the second."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = False,
        include_norm_add: bool = False,
        impl: str = "fast",
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, include_norm_add, impl)
        if bias and impl == "fast":
            raise ValueError("EncdecMultiheadAttn: bias=True needs impl='default'")
        self._make(bias, in_proj_weight_q=embed_dim, in_proj_weight_kv=2 * embed_dim, out_proj_weight=embed_dim)
        self._make(bias, in_proj_bias_q=embed_dim, in_proj_bias_kv=2 * embed_dim, out_proj_bias=embed_dim)
        self._make_norm()
        self.reset_parameters()

    def reset_parameters(self, **gains: float) -> None:
        super().reset_parameters(in_proj_weight_kv=math.sqrt(1.5), **gains)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        is_training: bool = True,
    ) -> tuple[torch.Tensor, None]:
        """Returns the attention. The key also serves as the value, and need_weights is ignored. key_padding_mask
        [batch, keys] and attn_mask [queries, keys]: True masks an entry out."""
        mask = self._mask(key_padding_mask, attn_mask)
        (q,) = self._split(F.linear(self._normed(query), self.in_proj_weight_q, self.in_proj_bias_q), 1)
        k, v = self._split(F.linear(key, self.in_proj_weight_kv, self.in_proj_bias_kv), 2)
        return self._out(self._attend(q, k, v, mask, False, is_training), query, is_training)
