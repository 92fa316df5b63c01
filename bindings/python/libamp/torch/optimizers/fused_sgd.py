# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import required

from .base import FusedOptimizer, fused_step, of_each


class FusedSGD(FusedOptimizer):
    """torch.optim.SGD in one pass, with Apex's arguments.

    wd_after_momentum: bool, adds the weight decay after the momentum. In a parameter's first step the momentum is its
    gradient, without dampening. materialize_master_grads: accepted and ignored, because amp always has master
    gradients. Without lr each group needs its own. Raises ValueError for a negative lr, momentum or weight_decay, or
    for nesterov without momentum or with dampening.
    """

    _skips_by_flag = True
    _kernels = ("multi_tensor_sgd",)
    _arguments = ("momentum", "dampening", "weight_decay", "nesterov")
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

    def _begins(self, group: dict[str, Any]) -> bool:
        """Returns True for a first step with dampening, which a first momentum does not have."""
        params = group["params"] if group["momentum"] and group["dampening"] else ()
        states = (self.state.get(param, {}) for param in params if param.grad is not None)
        return any(state.get("momentum_buffer") is None for state in states)

    def _step_group(self, group: dict[str, Any]) -> None:
        params, grads, states = self._lists(group)
        new = [group["momentum"] != 0 and state.get("momentum_buffer") is None for state in states]
        for param, state, is_new in zip(params, states, new, strict=True):
            if is_new:
                state["momentum_buffer"] = torch.zeros_like(param, dtype=torch.float32)
        steps = self._count_if_random(group, params)
        if not any(new) or self._found_inf is not None:  # where a GPU decides, a momentum of zeros may be a first one
            self._step_alike((params, grads, states), steps, group)
            return
        for kind in (True, False):
            which = [i for i, is_new in enumerate(new) if is_new == kind]
            lists = [[each[i] for i in which] for each in (params, grads, states)]
            self._step_alike(lists, 0 if kind else steps, group)

    def _step_alike(self, lists: Sequence[list[Any]], steps: Any, group: dict[str, Any]) -> None:
        params, grads, states = lists
        moments = of_each(states, "momentum_buffer") if group["momentum"] != 0 else {}
        numbers = {**self._numbers(group), "decay_after_momentum": self.wd_after_momentum}
        fused_step("sgd", params, grads, moments, steps, **numbers, **self._flag())
