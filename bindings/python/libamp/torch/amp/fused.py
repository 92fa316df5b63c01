# SPDX-License-Identifier: Apache-2.0
"""torch's own optimizers on the CPU at the bfloat16 levels: each step by torch's fused implementation, where the script
left the choice to torch (foreach and fused None). torch takes its slowest there: one tensor after the other, with
temporaries as large as the parameters, a third of a step of a ResNet-18 or an MLP.

The choice stands in the groups during the step alone, so that nobody finds or saves another one than was made.
"""
from __future__ import annotations

from typing import Any

import torch

_KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def _alike(param: torch.Tensor, state: dict[str, Any]) -> bool:
    """FP32 on the CPU, and lying alike: torch's kernels take elements in the order in which they lie."""
    others = [each for each in (param.grad, *state.values()) if isinstance(each, torch.Tensor) and each.dim()]
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
    return all(_alike(param, optimizer.state.get(param, {})) for param in group["params"])


class Choice:
    """`with Choice(optimizer, wanted):` around a step."""

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
