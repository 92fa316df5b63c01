# SPDX-License-Identifier: Apache-2.0
"""Moments of Adam in 8 bits (amp_optim.h): state["exp_avg"] is int8, state["exp_avg_sq"] uint8 with codes of its root,
and "<name>_scale" has an FP32 scale for each block of 256 elements, in the order of the codes in memory. DTensors have
DTensors of scales that are cut as the codes are."""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import kernels
from ..._words import counted
from .. import _tested_versions
from .._devices import need_kernels
from .._dtensors import is_cut, is_dtensor, local_part, rows_of_ranks

BLOCK = 256
LEAST = 4096  # smaller parameters keep FP32 moments
MOMENTS = {"exp_avg": torch.int8, "exp_avg_sq": torch.uint8}


def scale_of(name: str) -> str:
    return f"{name}_scale"


def are_in(state: dict[str, Any]) -> bool:
    return scale_of("exp_avg") in state


def _rows_of_blocks(param: torch.Tensor) -> int:
    """Returns the least number of rows that are whole blocks."""
    return BLOCK // math.gcd(math.prod(param.shape[1:]), BLOCK)


def are_possible(param: torch.Tensor) -> bool:
    """Returns True for parameters that are large enough, and for shards of them that begin at the edges of blocks."""
    if param.numel() < LEAST:
        return False
    rows = rows_of_ranks(param) if is_cut(param) else 0
    return not is_cut(param) or (rows > 0 and rows % _rows_of_blocks(param) == 0)


def fits(param: torch.Tensor) -> bool:
    """Returns True if the moments of the parameter are stored in 8 bits. Raises RuntimeError for a device without
    kernels, and for shards with blocks of several ranks."""
    if param.numel() < LEAST:
        return False
    need_kernels("FusedAdam: state_bits=8", param.device, "use state_bits=32")
    _tested_versions.rounding_on_gpu("FusedAdam(state_bits=8)", param.device)
    if not are_possible(param):
        raise RuntimeError(
            f"FusedAdam: state_bits=8 has a scale for each {BLOCK} elements, and the ranks' parts of a parameter of "
            f"shape {tuple(param.shape)} do not begin at such blocks: each needs a multiple of "
            f"{counted(_rows_of_blocks(param), 'row')}, cut along dimension 0 by one dimension of the mesh. Use "
            "state_bits=32"
        )
    return True


def _scales_of(param: torch.Tensor) -> torch.Tensor:
    if not is_dtensor(param):
        return torch.zeros(-(-param.numel() // BLOCK), device=param.device)
    from torch.distributed.tensor import Replicate, Shard, zeros

    together = _rows_of_blocks(param)
    shape = -(-param.shape[0] // together), together * math.prod(param.shape[1:]) // BLOCK
    mesh = param.device_mesh
    whole = [mesh.size(dim) == 1 or each.is_replicate() for dim, each in enumerate(param.placements)]
    placements = [Replicate() if each else Shard(0) for each in whole]
    return zeros(shape, dtype=torch.float32, device_mesh=mesh, placements=placements)


def _codes_like(param: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(param, dtype=MOMENTS[name]), scale_of(name): _scales_of(param)}


def _parts(state: dict[str, Any], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the codes and scales of this rank. The last row of scales may be longer than needed."""
    codes = local_part(state[name])
    return codes, local_part(state[scale_of(name)]).reshape(-1)[: -(-codes.numel() // BLOCK)]


def begin(param: torch.Tensor, state: dict[str, Any]) -> None:
    """Makes moments of zero."""
    for name in MOMENTS:
        state.update(_codes_like(param, name))


def encode(param: torch.Tensor, state: dict[str, Any], values: dict[str, torch.Tensor]) -> None:
    """Stores FP32 moments, of this rank or as the parameter."""
    for name, value in values.items():
        made = _codes_like(param, name)
        parts = _parts(made, name)
        codes, scales = (part.cpu() for part in parts)  # kernels of the CPU
        laid = torch.empty_like(codes, dtype=torch.float32).copy_(local_part(value))
        kernels.encode_moment(codes, scales, laid, name == "exp_avg_sq")
        for part, coded in zip(parts, (codes, scales), strict=True):
            part.copy_(coded)
        state.update(made)


def decode(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the moments of this rank in FP32 on the CPU, in the layout of their codes."""
    values = {}
    for name in MOMENTS:
        codes, scales = (part.cpu() for part in _parts(state, name))
        values[name] = torch.empty_like(codes, dtype=torch.float32)
        kernels.decode_moment(values[name], codes, scales, name == "exp_avg_sq")
    return values


def _layout_of(param: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides of codes, which have no gaps."""
    return torch.empty_like(local_part(param), device="meta").stride()


def lie_as(param: torch.Tensor, state: dict[str, Any]) -> None:
    """Lays the codes as their parameter after a change of its layout: a block is in the order of memory."""
    if local_part(state["exp_avg"]).stride() not in (local_part(param).stride(), _layout_of(param)):
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
    if are_in(saved) and wanted and local_part(saved["exp_avg"]).stride() == _layout_of(param):
        begin(param, state)
        for name in MOMENTS:
            for part, value in zip(_parts(state, name), _parts(saved, name), strict=True):
                part.copy_(value)
        return
    values = decode(saved) if are_in(saved) else saved
    if wanted:
        encode(param, state, values)
        return
    for name, value in values.items():
        state[name] = torch.empty_like(param, dtype=torch.float32)
        local_part(state[name]).copy_(local_part(value))


def lists_of(states: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the moments of all parameters, and their scales, None for FP32 ones."""
    lists: dict[str, list[Any]] = {}
    for name in MOMENTS:
        lists[name] = [state[name] for state in states]
        lists[scale_of(name)] = [_parts(state, name)[1] if are_in(state) else None for state in states]
    return lists
