# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch

from ... import kernels
from .base import FusedOptimizer, fused_step, of_each


def global_norm(grads: list[torch.Tensor], scale: Any = 1.0) -> Any:
    """Returns the L2 norm of all gradients times scale: a tensor on their device, or a number for several devices."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for grad in grads:
        by_device.setdefault(grad.device, []).append(grad)
    norms = []
    for device, own in by_device.items():
        norm = torch.zeros(1, dtype=torch.float32, device=device)
        there = scale.to(device) if isinstance(scale, torch.Tensor) else scale
        kernels.check([g.contiguous() for g in own], there, norm=norm, found_inf=torch.zeros_like(norm))
        norms.append(norm)
    if len(norms) == 1:
        return norms[0]
    return sum(float(norm) ** 2 for norm in norms) ** 0.5


class FusedLAMB(FusedOptimizer):
    """LAMB, with Apex's arguments: Adam's update of each tensor, scaled to lr times the norm of the tensor.

    max_grad_norm: float, limit of the norm of the gradients of all groups together, applied before the update, 0 for
    none. use_nvlamb: bool, scales also without weight decay. Raises RuntimeError for amsgrad or sparse gradients.
    """

    _skips_by_flag = True
    _needs_norms = True
    _kernels = ("multi_tensor_l2norm", "multi_tensor_lamb")
    _moments = ("exp_avg", "exp_avg_sq")
    _arguments = (*FusedOptimizer._arguments, "grad_averaging")
    _attributes: tuple[str, ...] = ("set_grad_none", "adam_w_mode", "use_nvlamb")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        self._refuse_amsgrad(amsgrad)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.use_nvlamb = use_nvlamb
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults, set_grad_none)

    def _step_all(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise RuntimeError("FusedLAMB does not support sparse gradients")
        norm = global_norm(grads) if grads else None
        for group in self.param_groups:
            params, own, states = self._lists(group)
            moments, steps = of_each(states, *self._moments), self._count(group, params)
            fused_step("lamb", params, own, moments, steps, grad_norm=norm, **self._numbers(group), **self._flag())

    def _numbers(self, group: dict[str, Any]) -> dict[str, Any]:
        limit = float(group["max_grad_norm"] or 0.0)
        modes = {"decoupled": bool(self.adam_w_mode), "nvlamb": bool(self.use_nvlamb)}
        return {**super()._numbers(group), "max_grad_norm": limit, **modes}
