# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch

from .base import FusedOptimizer, fused_step, number, of_each


class FusedNovoGrad(FusedOptimizer):
    """NovoGrad, with Apex's arguments. The second moment of a tensor is one number, the norm of its gradient.

    norm_type: 2 for the L2 norm, 0 for the largest element. reg_inside_moment: bool, adds the weight decay before the
    momentum. init_zero: bool, norms begin at 0 instead of at the norm of the first gradient. Raises RuntimeError for
    another norm_type or amsgrad.
    """

    _skips_by_flag = True
    _needs_norms = True
    _kernels = ("multi_tensor_novograd",)
    _moments = ("exp_avg",)
    _arguments = (*FusedOptimizer._arguments, "grad_averaging")
    _attributes = ("set_grad_none", "moment_mode")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        self._refuse_amsgrad(amsgrad)
        if norm_type not in (0, 2):
            raise RuntimeError("FusedNovoGrad: norm_type is 2, the L2 norm, or 0, the largest element")
        self.moment_mode = 0 if reg_inside_moment else 1
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults, set_grad_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class or of Apex's, whose groups hold the norms, first of FP16 parameters, then of FP32
        ones."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            vectors = group.pop("exp_avg_sq", None)
            for vector, dtype in zip(vectors or (), (torch.float16, torch.float32), strict=False):
                known = [p for p in group["params"] if p.dtype == dtype and self.state.get(p)]
                for param, norm in zip(known, vector.reshape(-1), strict=True):
                    self.state[param].update(exp_avg_sq=norm.float().reshape(1).to(param.device))

    def _begins(self, group: dict[str, Any]) -> bool:
        """Returns True if a norm will be that of the first gradient."""
        params = () if group["init_zero"] else group["params"]
        return any("exp_avg_sq" not in self.state.get(param, {}) for param in params if param.grad is not None)

    def _step_group(self, group: dict[str, Any]) -> None:
        if group["norm_type"] not in (0, 2):
            raise RuntimeError("FusedNovoGrad: norm_type is 2, the L2 norm, or 0, the largest element")
        params, grads, states = self._lists(group)
        if not params:
            self._count(group, params)
            return
        new = ["exp_avg_sq" not in state and not group["init_zero"] for state in states]
        for param, state in zip(params, states, strict=True):
            if "exp_avg_sq" not in state:
                state["exp_avg_sq"] = torch.zeros(1, dtype=torch.float32, device=param.device)
        if group["norm_type"] == 0:
            moments = of_each(states, "exp_avg", "exp_avg_sq")
            count = self._count(group, params, by_kernel=False)
            inf_norm_step(params, grads, moments, new, count, self.moment_mode, group, self._found_inf)
            return
        steps = self._count(group, params)
        # The kernel uses the norm of a first step directly. Norms that begin later, or at 0, are stepped apart.
        for kind in (True, False):
            which = [i for i, is_new in enumerate(new) if is_new == kind]
            if which:
                self._step_l2([[x[i] for i in which] for x in (params, grads, states)], kind, steps, group)

    def _step_l2(self, lists: list[list[Any]], new: bool, steps: int, group: dict[str, Any]) -> None:
        params, grads, states = lists
        if new and (isinstance(steps, torch.Tensor) or steps > 0):
            for grad, state in zip(grads, states, strict=True):
                state["exp_avg_sq"].copy_(grad.float().norm().reshape(1))
        moments = of_each(states, "exp_avg", "exp_avg_sq")
        numbers = {**self._numbers(group), "decoupled": self.moment_mode == 1, "init_zero": not new}
        fused_step("novograd", params, grads, moments, steps, **numbers, **self._flag())


def inf_norm_step(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    moments: dict[str, list[torch.Tensor]],
    new: list[bool],
    steps: Any,
    moment_mode: int,
    group: dict[str, Any],
    found_inf: torch.Tensor | None = None,
) -> None:
    """Steps NovoGrad with the maximum norm, for which libamp has no kernel: n = beta2 * n + (1 - beta2) * max|g|, in
    FP32. found_inf: a tensor on the GPU, nonzero writes nothing."""
    beta1, beta2 = group["betas"]
    steps = steps.double().reshape(()) if isinstance(steps, torch.Tensor) else steps
    keep = 1 - beta1 if group["grad_averaging"] else 1.0
    corr1 = 1 - beta1 ** (steps + 1) if group["bias_correction"] else 1.0
    corr2 = (1 - beta2 ** (steps + 1)) ** 0.5 if group["bias_correction"] else 1.0
    lists = zip(params, grads, moments["exp_avg"], moments["exp_avg_sq"], new, strict=True)
    for param, grad, m, n, first in lists:
        g, p = grad.float(), param.detach().float()
        if g.numel() == 0:
            continue
        before = [tensor.clone() for tensor in (param, m, n) if found_inf is not None]
        largest = g.abs().max().reshape(1)
        n.copy_(largest if first else beta2 * n + (1 - beta2) * largest)
        g = g / (n / corr2 + group["eps"])
        if moment_mode == 0:
            m.mul_(beta1).add_(g + group["weight_decay"] * p, alpha=keep)
            update = m / corr1
        else:
            m.mul_(beta1).add_(grad.float(), alpha=keep)
            update = m / corr1 / (n / corr2 + group["eps"]) + group["weight_decay"] * p
        param.copy_(p - number(group["lr"]) * update)
        for tensor, old in zip((param, m, n), before, strict=False):
            tensor.copy_(torch.where(found_inf == 0, tensor, old))
