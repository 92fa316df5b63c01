# SPDX-License-Identifier: Apache-2.0
"""torch's own optimizers on the CPU, at all levels but O0: each step of FP32 parameters or masters uses torch's fused
implementation if the script left the choice to torch (foreach and fused None). torch would choose its slowest: one
tensor after the other, with temporaries of the size of the parameters, a third of a step of a ResNet-18 or an MLP.

The choice is in the groups only during the step, where hooks of the step see it. Nothing sees or saves it afterwards.
"""
from __future__ import annotations

from typing import Any

import torch

from .._dtensors import is_dtensor, local_part
from .compiling import outside

_OF_DTENSORS = (torch.optim.Adam, torch.optim.AdamW)  # torch shards these implementations alone
_KINDS = (torch.optim.SGD, torch.optim.Adagrad, *_OF_DTENSORS)


def _alike(param: torch.Tensor, state: dict[str, Any]) -> bool:
    """Returns True for FP32 tensors on the CPU with equal layouts without gaps, because torch's kernels use the order
    of memory. Of a DTensor the part of this rank counts. Other tensor classes lack some of these functions. An integer
    step requires torch's loop."""
    tensors = [local_part(each) for each in (param.grad, *state.values()) if isinstance(each, torch.Tensor)]
    param = local_part(param)
    if type(param) not in (torch.Tensor, torch.nn.Parameter) or torch._debug_has_internal_overlap(param) != 0:
        return False
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
    if type(optimizer) not in _OF_DTENSORS and any(map(is_dtensor, group["params"])):
        return False
    states = [(param, optimizer.state.get(param, {})) for param in group["params"]]
    # torch's fused SGD needs the momentum of all parameters or of none, but a first gradient can come later
    momentum = {state.get("momentum_buffer") is None for param, state in states if param.grad is not None}
    return len(momentum) < 2 and all(_alike(param, state) for param, state in states)


class Choice:
    """Opens a block around a step: `with Choice(optimizer, wanted):`."""

    @outside
    def __init__(self, optimizer: Any, wanted: bool) -> None:
        self._groups = [group for group in optimizer.param_groups if _fits(optimizer, group)] if wanted else []

    def __enter__(self) -> None:
        for group in self._groups:
            group["fused"] = True

    def __exit__(self, *error: object) -> None:
        for group in self._groups:
            group["fused"] = None


def wanted(optimizer: Any, level: str) -> bool:
    """Returns True if the optimizer is one of torch's with a fused CPU implementation, since torch 2.4. Derived classes
    are excluded, and O0, which is a training without libamp."""
    kind = type(optimizer)
    op = f"_fused_{kind.__name__.lower()}_"
    if level == "O0" or kind not in _KINDS or not hasattr(torch, op):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", "CPU")
