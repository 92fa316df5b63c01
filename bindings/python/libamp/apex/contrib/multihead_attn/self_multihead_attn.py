# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.multihead_attn.self_multihead_attn."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ._attention import MultiheadAttn

__all__ = ["SelfMultiheadAttn"]


class SelfMultiheadAttn(MultiheadAttn):
    """Self attention of a sequence [time, batch, embed_dim].

    in_proj_weight has the rows of q, k and v of the first head, then of the second. separate_qkv_params: bool, one
    parameter for each instead. mask_additive: bool, key_padding_mask is added to the scores.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = False,
        include_norm_add: bool = False,
        impl: str = "fast",
        separate_qkv_params: bool = False,
        mask_additive: bool = False,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, include_norm_add, impl)
        self.separate_qkv_params, self.mask_additive = separate_qkv_params, mask_additive
        if mask_additive and include_norm_add:
            raise ValueError("SelfMultiheadAttn: mask_additive is not for include_norm_add")
        if mask_additive and impl == "fast" and not bias:
            raise ValueError("SelfMultiheadAttn: mask_additive with impl='fast' needs bias=True")
        if separate_qkv_params:
            self._make(bias, **{f"{part}_{kind}": embed_dim for kind in ("weight", "bias") for part in "qkv"})
        else:
            self._make(bias, in_proj_weight=3 * embed_dim, in_proj_bias=3 * embed_dim)
        self._make(bias, out_proj_weight=embed_dim, out_proj_bias=embed_dim)
        self._make_norm()
        self.reset_parameters()

    def reset_parameters(self, **gains: float) -> None:
        super().reset_parameters(in_proj_weight=math.sqrt(2), **gains)

    def _joined(self, kind: str) -> torch.Tensor | None:
        """Returns the joined weight or bias of the projection, ordered by head, then q, k, v."""
        if not self.separate_qkv_params:
            whole: torch.Tensor | None = getattr(self, f"in_proj_{kind}")
            return whole
        parts = [getattr(self, f"{part}_{kind}") for part in "qkv"]
        if parts[0] is None:
            return None
        heads = [part.view(self.num_heads, self.head_dim, *part.shape[1:]) for part in parts]
        return torch.stack(heads, dim=1).flatten(0, 2)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        is_training: bool = True,
    ) -> tuple[torch.Tensor, None]:
        """Returns the attention. The query also serves as key and value, and need_weights is ignored. key_padding_mask
        [batch, time] and attn_mask [time, time]: True masks an entry out."""
        if attn_mask is not None and self.mask_additive:
            raise ValueError("SelfMultiheadAttn: mask_additive is for key_padding_mask, not for attn_mask")
        mask = self._mask(key_padding_mask, attn_mask)
        weight, bias = self._joined("weight"), self._joined("bias")
        assert weight is not None
        projected = F.linear(self._normed(query), weight, bias)
        q, k, v = self._split(projected, 3)
        return self._out(self._attend(q, k, v, mask, self.mask_additive, is_training), query, is_training)
