# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import required

from .base import FusedOptimizer, fused_step, number, of_each


class FusedSGD(FusedOptimizer):
    """
    torch.optim.SGD in one pass. wd_after_momentum: the weight decay joins after the momentum. A parameter's first step
    makes its gradient the momentum, without dampening. materialize_master_grads is taken and means nothing: amp's
    master gradients are always there. Without lr each group must have its own.
    """

    _kernels = ("multi_tensor_sgd",)
    _attributes = ("set_grad_none", "wd_after_momentum", "materialize_master_grads")

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if value is not required and value < 0.0:
                raise ValueError(f"FusedSGD: {name} is {value} and must not be below 0")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("FusedSGD: nesterov needs momentum above 0 and dampening 0")
        self.wd_after_momentum = wd_after_momentum
        self.materialize_master_grads = materialize_master_grads
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, set_grad_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def _begin(self, param: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        super()._begin(param, state, group)
        state["momentum_buffer"] = None

    def _step_group(self, group: dict[str, Any]) -> None:
        params, grads, states = self._lists(group)
        moments = {}
        steps: list[int] | int = 1
        if group["momentum"] != 0:
            new = [i for i, state in enumerate(states) if state.get("momentum_buffer") is None]
            if new:
                steps = [1] * len(states)
            for i in new:
                steps[i] = 0  # type: ignore[index]
                states[i]["momentum_buffer"] = torch.zeros_like(params[i], dtype=torch.float32)
            moments = of_each(states, "momentum_buffer")
        fused_step(
            "sgd",
            params,
            grads,
            moments,
            steps,
            lr=number(group["lr"]),
            momentum=group["momentum"],
            dampening=group["dampening"],
            weight_decay=group["weight_decay"],
            nesterov=group["nesterov"],
            decay_after_momentum=self.wd_after_momentum,
        )
