# SPDX-License-Identifier: Apache-2.0
"""Moments of Adam in 8 bits (amp_optim.h): state["exp_avg"] is int8, state["exp_avg_sq"] uint8 with codes of its root,
and "<name>_scale" has an FP32 scale for each block of 256 elements, in the order of the codes in memory."""

from __future__ import annotations

from typing import Any

import torch

from ... import kernels
from .. import _tested_versions
from .._devices import need_kernels

BLOCK = 256
LEAST = 4096  # smaller parameters keep FP32 moments
MOMENTS = {"exp_avg": torch.int8, "exp_avg_sq": torch.uint8}


def scale_of(name: str) -> str:
    return f"{name}_scale"


def are_in(state: dict[str, Any]) -> bool:
    return scale_of("exp_avg") in state


def fits(param: torch.Tensor) -> bool:
    """Returns True if the moments of the parameter are stored in 8 bits. Raises RuntimeError for a device without
    kernels."""
    if param.numel() < LEAST:
        return False
    need_kernels("FusedAdam: state_bits=8", param.device, "use state_bits=32")
    _tested_versions.rounding_on_gpu("FusedAdam(state_bits=8)", param.device)
    return True


def _codes_like(param: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    blocks = -(-param.numel() // BLOCK)
    return {
        name: torch.zeros_like(param, dtype=MOMENTS[name]),
        scale_of(name): torch.zeros(blocks, device=param.device),
    }


def begin(param: torch.Tensor, state: dict[str, Any]) -> None:
    """Makes moments of zero."""
    for name in MOMENTS:
        state.update(_codes_like(param, name))


def encode(param: torch.Tensor, state: dict[str, Any], values: dict[str, torch.Tensor]) -> None:
    """Stores FP32 moments."""
    for name, value in values.items():
        made = _codes_like(torch.empty_like(param, device="cpu"), name)  # kernels of the CPU
        laid = torch.empty_like(made[name], dtype=torch.float32).copy_(value)
        kernels.encode_moment(made[name], made[scale_of(name)], laid, name == "exp_avg_sq")
        state.update({each: tensor.to(param.device) for each, tensor in made.items()})


def decode(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the moments in FP32 on the CPU, in the layout of their codes."""
    values = {}
    for name in MOMENTS:
        codes, scales = state[name].cpu(), state[scale_of(name)].cpu()
        values[name] = torch.empty_like(codes, dtype=torch.float32)
        kernels.decode_moment(values[name], codes, scales, name == "exp_avg_sq")
    return values


def lie_as(param: torch.Tensor, state: dict[str, Any]) -> None:
    """Lays the codes as their parameter after a change of its layout: a block is in the order of memory."""
    strides = state["exp_avg"].stride()
    if strides not in (param.stride(), torch.empty_like(param, device="meta").stride()):
        encode(param, state, decode(state))


def load(param: torch.Tensor, state: dict[str, Any], saved: dict[str, Any], wanted: bool) -> None:
    """Replaces the moments in `state` by those of a state_dict, in 8 bits if wanted, else in FP32. Codes of the same
    layout are copied."""
    if not all(isinstance(saved.get(name), torch.Tensor) for name in MOMENTS):
        return
    names = [name for moment in MOMENTS for name in (moment, scale_of(moment))]
    saved = {name: saved[name].detach() for name in names if name in saved}
    for name in names:
        state.pop(name, None)
    if are_in(saved) and wanted and saved["exp_avg"].stride() == torch.empty_like(param, device="meta").stride():
        state.update({name: value.to(param.device, copy=True) for name, value in saved.items()})
        return
    values = decode(saved) if are_in(saved) else saved
    if wanted:
        encode(param, state, values)
    else:
        state.update({n: torch.empty_like(param, dtype=torch.float32).copy_(value) for n, value in values.items()})


def lists_of(states: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the moments of all parameters, and their scales, None for FP32 ones."""
    names = [*MOMENTS, *map(scale_of, MOMENTS)]
    return {name: [state.get(name) for state in states] for name in names}
