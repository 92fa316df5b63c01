# SPDX-License-Identifier: Apache-2.0
"""torch's own optimizers on the CPU at the bfloat16 levels: each step by torch's fused implementation, where the script
left the choice to torch (foreach and fused None). torch takes its slowest there: one tensor after the other, with
temporaries as large as the parameters, a third of a step of a ResNet-18 or an MLP.

The choice stands in the groups during the step alone, where its hooks see it: after it nobody finds or saves another
one than was made.
"""
from __future__ import annotations

from typing import Any

import torch

from .compiling import outside

_KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def _alike(param: torch.Tensor, state: dict[str, Any]) -> bool:
    """FP32 on the CPU, and lying alike without gaps: torch's kernels take elements in the order in which they lie.
    Tensors of other classes (DTensor) have not all of these functions. An integer step is the loop's alone."""
    if type(param) not in (torch.Tensor, torch.nn.Parameter) or torch._debug_has_internal_overlap(param) != 0:
        return False
    tensors = [each for each in (param.grad, *state.values()) if isinstance(each, torch.Tensor)]
    others = [each for each in tensors if each.dim() or not each.is_floating_point()]
    return all(
        each.dtype is torch.float32 and each.device.type == "cpu" and each.layout is torch.strided
        and each.stride() == param.stride()
        for each in (param, *others)
    )


def _fits(optimizer: Any, group: dict[str, Any]) -> bool:
    if group.get("foreach", False) is not None or group.get("fused", False) is not None:
        return False
    if group.get("capturable") or group.get("differentiable"):
        return False
    states = [(param, optimizer.state.get(param, {})) for param in group["params"]]
    # torch's fused SGD takes the momentum of all or of none: not that of a parameter whose first gradient came later
    momentum = {state.get("momentum_buffer") is None for param, state in states if param.grad is not None}
    return len(momentum) < 2 and all(_alike(param, state) for param, state in states)


class Choice:
    """`with Choice(optimizer, wanted):` around a step."""

    @outside
    def __init__(self, optimizer: Any, wanted: bool) -> None:
        self._groups = [group for group in optimizer.param_groups if _fits(optimizer, group)] if wanted else []

    def __enter__(self) -> None:
        for group in self._groups:
            group["fused"] = True

    def __exit__(self, *error: object) -> None:
        for group in self._groups:
            group["fused"] = None


def wanted(optimizer: Any, low_type: str) -> bool:
    """Since torch 2.4 these have a fused implementation for the CPU. Classes derived from them may do anything."""
    kind = type(optimizer)
    op = f"_fused_{kind.__name__.lower()}_"
    if low_type != "bfloat16" or kind not in _KINDS or not hasattr(torch, op):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", "CPU")
