# SPDX-License-Identifier: Apache-2.0
"""Optimizers that wrap others (Lookahead, SAM, LARC): their parameters, groups and state."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def is_optimizer(value: Any) -> bool:
    """Returns True for any object with the attributes of an optimizer."""
    return all(hasattr(value, name) for name in ("param_groups", "step", "zero_grad"))


def _members(optimizer: Any) -> Iterator[Any]:
    for value in getattr(optimizer, "__dict__", {}).values():
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        else:
            yield value


def _params(optimizer: Any) -> set[int]:
    return {id(param) for group in optimizer.param_groups for param in group["params"]}


def inside(optimizer: Any, others: list[Any]) -> list[Any]:
    """Returns the inner optimizers for its own parameters, and theirs. `others`: optimizers that count separately."""
    own = _params(optimizer)
    found, look_at = [optimizer], [optimizer]
    while look_at:
        for value in _members(look_at.pop()):
            if any(value is other for other in (*found, *others)) or isinstance(value, type) or not is_optimizer(value):
                continue
            if isinstance(value.param_groups, (list, tuple)) and not own.isdisjoint(_params(value)):
                found.append(value)
                look_at.append(value)
    return found[1:]


def re_key(optimizer: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Moves the state of the first of each pair to the second."""
    state = getattr(optimizer, "state", None)
    if not isinstance(state, dict):
        return
    new = {id(old): new for old, new in pairs}  # keys may be numbers too, which tensors cannot be compared with
    items = [(new.get(id(key), key), value) for key, value in state.items()]
    state.clear()
    state.update(items)  # in the same order, which state_dict shows


def recast_states(optimizers: list[Any]) -> None:
    """Casts existing state to the present type of the parameters, by the optimizer's own load. Wrappers load their
    inner state and may lose their own, which is cast as torch does."""
    for optimizer in optimizers:
        for each in (optimizer, *inside(optimizer, optimizers)):
            state, inner = getattr(each, "state", None), inside(each, [])
            if inner and not any(getattr(other, "state", None) is state for other in inner):
                _recast_own(state)
            elif state and not inner and hasattr(each, "load_state_dict"):
                each.load_state_dict(each.state_dict())


def _recast_own(state: Any) -> None:
    for param, value in list(state.items()) if isinstance(state, dict) else ():
        if isinstance(param, torch.Tensor) and param.is_floating_point():
            state[param] = _recast(param, value)


def _recast(param: torch.Tensor, value: Any, key: Any = None) -> Any:
    if isinstance(value, torch.Tensor):
        return value if key == "step" or not value.is_floating_point() else value.to(param.dtype)
    if isinstance(value, dict):
        for name in value:
            value[name] = _recast(param, value[name], name)
        return value
    if isinstance(value, list):
        value[:] = [_recast(param, item) for item in value]
    return value
