# SPDX-License-Identifier: Apache-2.0
"""Tells optimizers that lose small updates of 16-bit weights from those that do not: they round at random, or add up
the rests (Kahan). Both leave most elements where they are in a step. But rounding to nearest moves an element by a
distance only for an update of half of it or more, and the others move it for any update: by chance, or when the rests
have grown. So elements are counted that moved by many times the largest update that the usual rules can make of the
learning rate, the gradient and the optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from .._dtensors import local_part
from .samples import Group, blocks_of, is_readable

MARGIN = 8.0
_STATES = 3  # of a parameter's shape that are read


def _keys(group: Group, optimizer: Any) -> Iterator[str]:
    """Yields the names of an optimizer's state that have an element for each of the parameter."""
    param = group.members[0].param
    state = optimizer.state.get(param)
    for key, value in list(state.items()) if isinstance(state, dict) else ():
        if isinstance(value, torch.Tensor) and value.shape == param.shape and is_readable(local_part(value)):
            yield key


def _state(group: Group, optimizer: Any, key: str) -> Any:
    """Returns the state of the sampled elements, 0 where there is none."""
    views = []
    for member in group.members:
        param = member.param
        local = local_part(optimizer.state.get(param, {}).get(key))
        if isinstance(local, torch.Tensor) and local.numel() == member.numel and is_readable(local):
            views.append(blocks_of(local.detach(), member.step, member.blocks, local_part(param)).reshape(-1).float())
        else:
            views.append(group.zero[: member.count].float())
    return torch.cat(views)


def _rates(group: Group, rates: dict[int, float]) -> Any:
    """Returns the learning rate, a number if all parameters have the same."""
    values = [rates.get(member.key, 0.0) for member in group.members]
    if len(set(values)) == 1:
        return values[0]
    vector = torch.empty(group.size, device=group.device)
    for member, value in zip(group.members, values):
        vector[member.begin : member.begin + member.count] = value
    return vector


def count_small_moves(group: Group, optimizer: Any, rates: dict[int, float], there: Any, steps: int) -> None:
    """Adds the moves of a step to those of a group: between group.old and group.last, of elements with a gradient."""
    rate = _rates(group, rates)
    betas = optimizer.param_groups[0].get("betas")
    young = isinstance(betas, (tuple, list)) and len(betas) > 1 and isinstance(betas[1], float)
    correction = math.sqrt(1 - betas[1] ** steps) if young else 1.0  # Adam's, of a second moment that began at 0
    grad = group.size_of_gradient
    states = [_state(group, optimizer, key) for key in list(_keys(group, optimizer))[:_STATES]]
    first = grad
    for state in states:
        first = torch.maximum(first, state.abs())
    scaled = torch.zeros_like(grad)
    for state in states:  # a state without negative numbers may be a second moment
        ratio = correction * torch.maximum(grad, states[0].abs()) / state.abs().sqrt()
        scaled = torch.maximum(scaled, torch.where(state.min() >= 0, ratio, 0.0))
    likely = rate * torch.where(scaled > 0, scaled, first)
    spacing = torch.finfo(group.dtype).eps * group.last.float().abs()
    moved = (group.last.float() - group.old.float()).abs()
    by_gradient = rate * torch.maximum(first, scaled)
    # rules that normalize gradients or take their signs make updates of the rate, others in proportion to the gradient
    for index, largest in enumerate((torch.maximum(by_gradient, rate * torch.ones_like(first)), by_gradient)):
        small = there & (spacing >= MARGIN * largest) & (largest > 0)
        group.small_moves[index] += (small & (moved >= MARGIN * largest)).sum()
        group.small_updates[index] += torch.where(small, likely / spacing, 0.0).sum()
