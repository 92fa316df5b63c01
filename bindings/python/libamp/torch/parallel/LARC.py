# SPDX-License-Identifier: Apache-2.0
"""Layer-wise adaptive learning rates around any optimizer (You et al., arXiv:1708.03888), with Apex's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class LARC:
    """Wraps `optimizer`. Before each step the gradient of each parameter becomes r * (g + weight_decay * p), with r =
    trust_coefficient * |p| / (|g| + weight_decay * |p| + eps), and r = 1 where a norm is 0.

    clip: bool, r = min(r / lr, 1), so that lr is an upper limit. The wrapper has the attributes of an optimizer, and
    amp.initialize and amp.scale_loss accept it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trust_coefficient: float = 0.02,
        clip: bool = True,
        eps: float = 1e-8,
    ) -> None:
        self.optim = optimizer
        self.trust_coefficient = trust_coefficient
        self.clip = clip
        self.eps = eps

    # Everything else is the optimizer's: state, defaults, hooks, attributes for schedulers.
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optim":
            raise AttributeError(name)
        return getattr(self.optim, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optim.param_groups = value

    @property
    def state(self) -> Any:
        return self.optim.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optim.state = value

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return repr(self.optim)

    def state_dict(self) -> dict[str, Any]:
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self.optim.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Adapts the gradients and steps. Returns the result of the closure, which the optimizer may call several
        times."""
        decays = [group.get("weight_decay", 0.0) for group in self.optim.param_groups]

        def adapted() -> Any:
            assert closure is not None
            with torch.enable_grad():
                loss = closure()
            self._adapt(decays)
            return loss

        try:
            for group in self.optim.param_groups:  # the decay is in the gradient
                if "weight_decay" in group:
                    group["weight_decay"] = 0
            if closure is not None:
                return self.optim.step(adapted)
            self._adapt(decays)
            return self.optim.step()
        finally:
            for group, decay in zip(self.optim.param_groups, decays, strict=True):
                if "weight_decay" in group:
                    group["weight_decay"] = decay

    @torch.no_grad()
    def _adapt(self, decays: list[float]) -> None:
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            by_device: dict[torch.device, list[torch.Tensor]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    by_device.setdefault(param.device, []).append(param)
            for params in by_device.values():
                self._adapt_gradients(params, decay, group["lr"])

    def _adapt_gradients(self, params: list[torch.Tensor], decay: float, lr: Any) -> None:
        """Adapts all gradients in one pass. No norm is copied to the host."""
        grads = [param.grad for param in params if param.grad is not None]
        param_norm, grad_norm = _norms(params), _norms(grads)
        ratio = self.trust_coefficient * param_norm / (grad_norm + decay * param_norm + self.eps)
        if self.clip:
            ratio = (ratio / lr).clamp_max(1.0)
        ratio = torch.where((param_norm != 0) & (grad_norm != 0), ratio, torch.ones_like(ratio))
        if decay != 0:
            torch._foreach_add_(
                grads, [param.to(grad.dtype) for param, grad in zip(params, grads, strict=True)], alpha=decay
            )
        torch._foreach_mul_(grads, [r.to(grad.dtype) for r, grad in zip(ratio.unbind(), grads, strict=True)])


def _norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the L2 norms in one tensor, FP32 or wider, because squares of fp16 numbers overflow fp16."""
    wide = [tensor if tensor.dtype == torch.float64 else tensor.float() for tensor in tensors]
    norms = torch._foreach_norm(wide)
    dtype = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return torch.stack([norm.to(dtype) for norm in norms])
