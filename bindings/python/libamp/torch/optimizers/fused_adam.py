# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ... import kernels
from . import eight_bits
from .base import FusedOptimizer, apexs_arguments, fused_step, loss_of, masters_of, of_each
from .fused_lamb import global_norm
from .grad_scaler import Scaling


class FusedAdam(FusedOptimizer):
    """Adam in one pass, with Apex's arguments. adam_w_mode, the default, is AdamW. Steps are counted for each group.

    capturable: bool, the step count is a tensor, so that a CUDA graph can contain the step. The graph uses the lr of
    its capture. torch's GradScaler leaves unscaling and skipping to the step, and the gradients are unscaled after it.
    master_weights: bool, needs capturable. 16-bit parameters have FP32 masters in state["master_param"], which are
    stepped and rounded. max_grad_norm: float, limit of the norm of a group's gradients, 0 for none, as in Apex's older
    FusedAdam. state_bits: int, 8 stores the moments of parameters from 4,096 elements on in 8 bits, 2 1/32 bytes an
    element instead of 8, experimental on GPUs. They are rounded at random by seed, the parameter's index in the
    optimizer, step and element, so all ranks with one seed write the same bytes. load_state_dict accepts the state of
    either state_bits.

    Raises RuntimeError for amsgrad, for master_weights without capturable, for max_grad_norm with it, or for
    state_bits=8 with it or with a large parameter on a device without libamp's kernels.
    """

    _skips_by_flag = True
    _kernels = ("multi_tensor_adam", "multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master")
    _moments = ("exp_avg", "exp_avg_sq")
    _attributes = ("set_grad_none", "adam_w_mode", "capturable", "master_weights", "state_bits", "seed")
    state_bits, seed = 32, 0  # of older pickles

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        max_grad_norm: float = 0.0,
        state_bits: int = 32,
        seed: int = 0,
    ) -> None:
        self._refuse_amsgrad(amsgrad)
        if master_weights and not capturable:
            raise RuntimeError("FusedAdam: master_weights needs capturable=True")
        if max_grad_norm and capturable:
            raise RuntimeError("FusedAdam: max_grad_norm is not for capturable=True, which must not wait for a norm")
        if state_bits not in (8, 32):
            raise ValueError(f"FusedAdam: state_bits is {state_bits}: use 32 or 8")
        if state_bits == 8 and capturable:
            raise RuntimeError("FusedAdam: state_bits=8 has no capturable=True")
        self.state_bits, self.seed = state_bits, seed
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.capturable = capturable
        self.master_weights = master_weights
        self._step_supports_amp_scaling = capturable
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        if max_grad_norm:
            defaults["max_grad_norm"] = max_grad_norm
        super().__init__(params, defaults, set_grad_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._step_supports_amp_scaling = self.capturable

    def _begin(self, param: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        coded = self.state_bits == 8 and eight_bits.fits(param)  # raises before there is a state
        super()._begin(param, state, group)
        if coded:
            eight_bits.begin(param, state)
        if self.master_weights and param.dtype != torch.float32:
            state["master_param"] = param.detach().clone().float()

    @property
    def param_groups_master(self) -> list[dict[str, Any]]:
        """Returns the groups with masters, from the first step on. An FP32 parameter is its own master."""
        groups = []
        for group in self.param_groups:
            masters = [self.state.get(param, {}).get("master_param", param) for param in group["params"]]
            groups.append({"params": masters})
        return groups

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *apexs: Any, **named: Any) -> Any:
        """Steps, and returns the result of the closure.

        grad_scaler, at Apex's position or by name: a torch.cuda.amp.GradScaler whose gradients are still scaled. It is
        used with capturable only. Apex's arguments between closure and grad_scaler belong to its first FusedAdam:
        values other than None raise RuntimeError.
        """
        old = apexs_arguments("step", ("grads", "output_params", "scale", "grad_norms", "grad_scaler"), apexs, named)
        grad_scaler = old.pop("grad_scaler")
        if any(value is not None for value in old.values()):
            raise RuntimeError("FusedAdam.step takes only a closure and grad_scaler: it reads the gradients of its "
                               "parameters")
        loss = loss_of(closure)
        scaling = Scaling(self, grad_scaler) if self.capturable else None
        for group in self.param_groups:
            if scaling is None:
                self._step_group(group)
            else:
                self._step_on_device(group, scaling)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        params, grads, states = self._lists(group)
        rule = "adamw" if self.adam_w_mode else "adam"
        steps = self._count(group, params)
        numbers = self._numbers(group) | self._flag()
        if group.get("max_grad_norm") and grads:
            norm = global_norm(grads)
            if isinstance(norm, torch.Tensor):
                numbers["inv_scale"] = (group["max_grad_norm"] / (norm.double() + 1e-6)).clamp(max=1.0).float()
            else:
                numbers["grad_factor"] = min(1.0, group["max_grad_norm"] / (norm + 1e-6))
        moments = of_each(states, *self._moments)
        if any(map(eight_bits.are_in, states)):
            for param, state in zip(params, states, strict=True):
                if eight_bits.are_in(state):
                    eight_bits.lie_as(param, state)
            moments = eight_bits.lists_of(states)
            numbers["keys"] = self._keys(params)
        fused_step(rule, params, grads, moments, steps, **numbers)

    def _keys(self, params: list[torch.Tensor]) -> list[int]:
        """Returns the keys of the parameters' random numbers."""
        every = (param for group in self.param_groups for param in group["params"])
        index = {id(param): i for i, param in enumerate(every)}
        return [kernels.optim_key(self.seed, str(index[id(param)])) for param in params]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of this optimizer, with moments of either state_bits, or of torch's own one."""
        super().load_state_dict(state_dict)
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(saved, params, strict=True):
            state = state_dict["state"].get(index, {})
            wanted = bool(state) and self.state_bits == 8 and eight_bits.fits(param)
            if wanted or eight_bits.are_in(state):
                eight_bits.load(param, self.state[param], state, wanted)

    def _step_on_device(self, group: dict[str, Any], scaling: Scaling) -> None:
        params, grads, states = self._lists(group)
        if not params:
            return
        device = params[0].device
        moments = of_each(states, *self._moments)
        masters, halves = masters_of(params, states)
        fused_step(
            "adamw" if self.adam_w_mode else "adam",
            masters,
            grads,
            moments,
            self._step_tensor(group, device),  # which the kernel advances unless it skips
            model_params=halves if self.master_weights else None,
            **scaling.arguments(device),
            **self._numbers(group),
        )
        scaling.unscale(grads)
