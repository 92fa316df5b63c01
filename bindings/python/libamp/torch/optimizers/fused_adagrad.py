# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from .base import FusedOptimizer, fused_step, of_each


class FusedAdagrad(FusedOptimizer):
    """Adagrad in one pass, with Apex's arguments. adagrad_w_mode: bool, decouples the weight decay from the gradient,
    as AdamW does."""

    _skips_by_flag = True
    _kernels = ("multi_tensor_adagrad",)
    _counts = False
    _arguments = ("eps", "weight_decay")
    _moments = ("sum",)
    _attributes = ("set_grad_none", "adagrad_w_mode")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        self.adagrad_w_mode = 1 if adagrad_w_mode else 0
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, set_grad_none)

    def _step_group(self, group: dict[str, Any]) -> None:
        params, grads, states = self._lists(group)
        numbers = {**self._numbers(group), "decoupled": bool(self.adagrad_w_mode)}
        steps = self._count_if_random(group, params)
        fused_step("adagrad", params, grads, of_each(states, "sum"), steps, **numbers, **self._flag())
