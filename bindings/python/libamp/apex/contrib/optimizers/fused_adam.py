# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.fused_adam."""

from __future__ import annotations

from typing import Any

from libamp.torch import optimizers

__all__ = ["FusedAdam"]


class FusedAdam(optimizers.FusedAdam):
    """Today's FusedAdam with the arguments of Apex's first one, in their order. use_mt and amp_scale_adjustment are
    ignored: one call steps all tensors, and amp passes unscaled gradients."""

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        amsgrad: bool = False,
        use_mt: bool = False,
        amp_scale_adjustment: float = 1.0,
        **today: Any,
    ) -> None:
        if eps_inside_sqrt:
            raise RuntimeError(
                "FusedAdam adds eps to the root: leave eps_inside_sqrt=True away, and take a smaller eps"
            )
        today.update(weight_decay=weight_decay, amsgrad=amsgrad, max_grad_norm=max_grad_norm)
        super().__init__(params, lr, bias_correction, betas, eps, **today)
