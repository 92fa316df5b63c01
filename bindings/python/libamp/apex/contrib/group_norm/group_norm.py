# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm for any layout. Returns the type of the input. act: None, "silu" or "swish"."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        act: str | None = None,
    ):
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        self.act = act.lower() if act else act
        if self.act not in (None, "", "silu", "swish"):
            raise ValueError(f"GroupNorm: act must be None, 'silu' or 'swish' (which are one), not {act!r}")

    def forward(self, input: Any) -> Any:
        mixed = self.affine and self.weight.dtype != input.dtype
        x = input.to(self.weight.dtype) if mixed else input
        y = F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        y = F.silu(y) if self.act else y
        return y.to(input.dtype) if mixed else y

    def extra_repr(self) -> str:
        said = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return said + (f", act={self.act}" if self.act else "")
