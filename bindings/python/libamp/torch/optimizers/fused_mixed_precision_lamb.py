# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .base import apexs_arguments, fused_step, loss_of, masters_of, of_each
from .fused_lamb import FusedLAMB, global_norm
from .grad_scaler import Scaling


class FusedMixedPrecisionLamb(FusedLAMB):
    """LAMB with its own FP32 masters in state["master_param"], with Apex's arguments.

    step: int, initial step count. reduced_precision_dtype: torch.dtype of the parameters with masters, None for FP16
    and BF16. lr and step count are tensors in the groups. torch's GradScaler leaves unscaling and skipping to this
    optimizer.
    """

    _kernels = ("multi_tensor_l2norm", "multi_tensor_lamb_mp")
    _attributes = (*FusedLAMB._attributes, "reduced_precision_dtype")
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        self.reduced_precision_dtype = reduced_precision_dtype
        rate, set_grad_none = torch.as_tensor(lr, dtype=torch.float32), True
        super().__init__(
            params, rate, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode, grad_averaging,
            set_grad_none, max_grad_norm, use_nvlamb,
        )
        for group in self.param_groups:
            device = group["params"][0].device if group["params"] else None
            group["step"] = torch.as_tensor(group.get("step", step), dtype=torch.int64, device=device).reshape(1)
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)

    def _begin(self, param: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        super()._begin(param, state, group)
        reduced = self.reduced_precision_dtype
        if param.dtype == reduced or (reduced is None and param.dtype != torch.float32):
            state["master_param"] = param.detach().clone().float()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *apexs: Any, **named: Any) -> Any:
        """Steps, and returns the result of the closure. grad_scaler, after the closure or by name: a
        torch.cuda.amp.GradScaler whose gradients are still scaled. Raises RuntimeError for sparse gradients."""
        grad_scaler = apexs_arguments("step", ("grad_scaler",), apexs, named)["grad_scaler"]
        loss = loss_of(closure)
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not grads:
            return loss
        if any(grad.is_sparse for grad in grads):
            raise RuntimeError("FusedMixedPrecisionLamb does not support sparse gradients")
        scaling = Scaling(self, grad_scaler)
        norm = global_norm(grads, scaling.arguments(grads[0].device).get("inv_scale", 1.0))
        for group in self.param_groups:
            self._step_masters(group, norm, scaling)
        return loss

    def _step_masters(self, group: dict[str, Any], norm: Any, scaling: Scaling) -> None:
        params, grads, states = self._lists(group)
        if not params:
            return
        device = params[0].device
        step = self._step_tensor(group, device)
        masters, halves = masters_of(params, states)
        moments = of_each(states, *self._moments)
        arguments = {**self._numbers(group), **scaling.arguments(device), "grad_norm": norm}
        fused_step("lamb", masters, grads, moments, step, model_params=halves, **arguments)
