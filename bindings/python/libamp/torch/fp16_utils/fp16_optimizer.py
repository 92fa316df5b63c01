# SPDX-License-Identifier: Apache-2.0
"""FP16_Optimizer: FP32 masters and loss scaling around any optimizer of a 16-bit model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .fp16util import clip_grad_norm, copy_all, model_grads_to_master_grads
from .loss_scaler import DynamicLossScaler, LossScaler

_HALF = (torch.float16, torch.bfloat16)


class FP16_Optimizer:
    """Wraps an optimizer: it steps FP32 masters instead of the 16-bit parameters, with Apex's arguments.

    Call optimizer.backward(loss) instead of loss.backward(). static_loss_scale: float. dynamic_loss_scale: bool, with
    dynamic_loss_args as for DynamicLossScaler. A step with an overflow is skipped, and reported if verbose. Raises
    TypeError for parameters other than FP16, BF16 and FP32.
    """

    def __init__(
        self,
        init_optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        self.verbose = verbose
        self.optimizer = init_optimizer
        self.fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp32_groups: list[list[torch.Tensor]] = []
        for group in self.optimizer.param_groups:
            self._take(group)
        # Existing 16-bit state becomes FP32, as its parameters do.
        self.optimizer.load_state_dict(self.optimizer.state_dict())
        self.loss_scaler = (
            DynamicLossScaler(**(dynamic_loss_args or {})) if dynamic_loss_scale else LossScaler(static_loss_scale)
        )
        self.dynamic_loss_scale = dynamic_loss_scale
        self.overflow = False
        self.first_closure_call_this_step = True
        self.clip_grad_norm = clip_grad_norm
        self._unscaled = False  # FP32 parameters' gradients are

    def _take(self, group: dict[str, Any]) -> None:
        halves, masters, singles = [], [], []
        for index, param in enumerate(group["params"]):
            if not param.requires_grad:
                continue
            if param.dtype in _HALF:
                master = param.detach().clone().float().requires_grad_()
                group["params"][index] = master
                if param in self.optimizer.state:
                    self.optimizer.state[master] = self.optimizer.state.pop(param)
                halves.append(param)
                masters.append(master)
            elif param.dtype == torch.float32:
                singles.append(param)
            else:
                raise TypeError(f"FP16_Optimizer: parameters are FP16, BF16 or FP32, and one is {param.dtype}")
        self.fp16_groups.append(halves)
        self.fp32_from_fp16_groups.append(masters)
        self.fp32_from_fp32_groups.append(singles)

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text)

    def __getstate__(self) -> dict[str, Any]:
        raise RuntimeError("FP16_Optimizer is saved with state_dict() and loaded with load_state_dict()")

    def zero_grad(self, set_grads_to_None: bool = False, set_to_none: bool | None = None) -> None:
        """Clears the gradients of the masters and of the model's parameters."""
        to_none = set_grads_to_None if set_to_none is None else set_to_none
        for params in [group["params"] for group in self.optimizer.param_groups] + self.fp16_groups:
            for param in params:
                if to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad = param.grad.detach().zero_()
        self._unscaled = False

    def _singles(self) -> list[torch.Tensor]:
        return [param for group in self.fp32_from_fp32_groups for param in group]

    def backward(self, loss: torch.Tensor, update_master_grads: bool = True, retain_graph: bool = False) -> None:
        """Runs backward through the scaled loss.

        update_master_grads: False omits the copy to the masters, for all but the last of several losses or parts of a
        batch.
        """
        earlier = {}
        if self._unscaled:  # an FP32 parameter's gradient must not be unscaled twice
            earlier = {param: param.grad for param in self._singles() if param.grad is not None}
            for param in earlier:
                param.grad = None
        self._unscaled = False
        (loss.float() * self.loss_scaler.loss_scale).backward(retain_graph=retain_graph)
        if not update_master_grads:
            for param, grad in earlier.items():
                param.grad = _sum(grad * self.loss_scaler.loss_scale, param.grad)
            return
        self.update_master_grads()
        for param, grad in earlier.items():
            param.grad = _sum(grad, param.grad)

    def update_master_grads(self) -> None:
        """Copies the model's gradients, unscaled, to the masters. The masters' gradients can be read and clipped after
        it."""
        if self.dynamic_loss_scale:
            params = [param for group in self.fp16_groups for param in group] + self._singles()
            self.overflow = self.loss_scaler.has_overflow(params)
            if self.overflow:
                return
        for halves, masters in zip(self.fp16_groups, self.fp32_from_fp16_groups, strict=True):
            model_grads_to_master_grads(halves, masters)
        if self.loss_scaler.loss_scale != 1.0:
            grads = [p.grad for group in self.fp32_from_fp16_groups for p in group if p.grad is not None]
            if not self._unscaled:
                grads += [p.grad for p in self._singles() if p.grad is not None]
            if grads:
                torch._foreach_mul_(grads, 1.0 / self.loss_scaler.loss_scale)
        self._unscaled = True

    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> Any:
        """Clips the gradients of all masters. Returns their norm before, or -1 after an overflow."""
        if self.overflow:
            return -1
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        return self.clip_grad_norm(params, max_norm, norm_type)

    def inspect_master_grad_data(self) -> list[list[torch.Tensor | None]] | None:
        """Returns the master gradients of each group. Returns None, with a warning, after an overflow."""
        if self.overflow:
            print(
                "FP16_Optimizer.inspect_master_grad_data: the last backward overflowed; there are no master gradients"
            )
            return None
        return [
            [None if param.grad is None else param.grad.data for param in group["params"]]
            for group in self.optimizer.param_groups
        ]

    def _skip(self) -> bool:
        """Updates the scale. Returns True after an overflow."""
        scale = self.loss_scaler.loss_scale
        self.loss_scaler.update_scale(self.overflow)
        if self.overflow:
            self._say(
                f"Overflow: this step is skipped, the loss scale {scale} becomes {self.loss_scaler.loss_scale}"
            )
        return self.overflow

    @torch.no_grad()
    def _to_model(self) -> None:
        for halves, masters in zip(self.fp16_groups, self.fp32_from_fp16_groups, strict=True):
            copy_all(halves, masters)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps, or skips after an overflow. A closure must call zero_grad and backward of this optimizer, and is
        called again after each overflow."""
        if self._skip():
            self._unscaled = False
            return None
        result = self.optimizer.step() if closure is None else self._step_with(closure)
        self._to_model()
        return result

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        def wrapped() -> Any:
            # The optimizer moved the masters before it calls again.
            if not self.first_closure_call_this_step:
                self._to_model()
            self.first_closure_call_this_step = False
            with torch.enable_grad():
                loss = closure()
                while self.overflow:
                    self._skip()
                    loss = closure()
            return loss

        try:
            return self.optimizer.step(wrapped)
        finally:
            self.first_closure_call_this_step = True

    def state_dict(self) -> dict[str, Any]:
        """Returns the state with the masters. The loss scaler is a dict of numbers."""
        return {
            "loss_scaler": dict(self.loss_scaler.__dict__),
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "first_closure_call_this_step": self.first_closure_call_this_step,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": [[param.detach() for param in group] for group in self.fp32_from_fp16_groups],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class or of Apex's, whose loss scaler is an object. The model's parameters become the
        rounded masters."""
        scaler = state_dict["loss_scaler"]
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        self.loss_scaler = DynamicLossScaler() if self.dynamic_loss_scale else LossScaler()
        self.loss_scaler.__dict__.update(scaler if isinstance(scaler, dict) else scaler.__dict__)
        self.overflow = state_dict["overflow"]
        self.first_closure_call_this_step = state_dict["first_closure_call_this_step"]
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        for masters, saved in zip(self.fp32_from_fp16_groups, state_dict["fp32_from_fp16"], strict=True):
            copy_all(masters, saved)
        self._to_model()

    @property
    def loss_scale(self) -> float:
        return self.loss_scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler.cur_scale = value

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value


def _sum(earlier: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    return earlier if new is None else earlier + new
