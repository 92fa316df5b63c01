# SPDX-License-Identifier: Apache-2.0
"""Casts the floating tensors in the arguments or results of a model, in containers of any nesting, multiplies a loss by
a scale, and disables casts in a block."""
from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ... import _core
from .compiling import is_compiling

_SEQUENCES = (list, tuple, set, frozenset, deque)


def _cast_mapping(value: Mapping[Any, Any], dtype: torch.dtype) -> Any:
    cast = {key: cast_tree(item, dtype) for key, item in value.items()}
    if all(cast[key] is value[key] for key in cast):
        return value
    try:
        out: Any = copy.copy(value)
        for key, item in cast.items():
            out[key] = item
    except TypeError:  # one that cannot be written to
        return cast
    return out


def _cast_sequence(value: Any, dtype: torch.dtype) -> Any:
    cast = [cast_tree(item, dtype) for item in value]
    if all(new is old for new, old in zip(cast, value, strict=True)):
        return value
    if hasattr(value, "_fields"):
        return type(value)(*cast)
    return type(value)(cast, value.maxlen) if isinstance(value, deque) else type(value)(cast)


def _cast_dataclass(value: Any, dtype: torch.dtype) -> Any:
    old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    new = {name: cast_tree(item, dtype) for name, item in old.items()}
    if all(new[name] is old[name] for name in old):
        return value
    out = copy.copy(value)
    for name, item in new.items():
        object.__setattr__(out, name, item)  # frozen ones too: the copy is ours
    return out


def cast_tree(value: Any, dtype: torch.dtype) -> Any:
    """Returns `value` with its floating tensors in `dtype`. An object without floating tensors, or one that is no
    container (generators too), is returned unchanged."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype is not dtype else value
    if isinstance(value, (str, bytes, torch.nn.Module, type)) or value is None:
        return value
    if isinstance(value, Mapping):
        return _cast_mapping(value, dtype)
    if type(value).__module__.partition(".")[0] == "numpy":
        return value
    if callable(getattr(value, "to", None)):
        try:
            return value.to(dtype)
        except (TypeError, RuntimeError):
            return value
    if isinstance(value, _SEQUENCES):
        return _cast_sequence(value, dtype)
    return _cast_dataclass(value, dtype) if dataclasses.is_dataclass(value) else value


def scaled(loss: Any, scale: float | torch.Tensor) -> Any:
    """Returns loss.float() * scale, recorded by autograd. scale: a number, or a tensor where only the GPU knows it. A
    step without effect is omitted."""
    if not hasattr(loss, "float"):
        raise TypeError(
            f"the loss is a tensor with a graph, on which backward is called; not a {type(loss).__name__}"
        )
    loss = loss.float()
    if isinstance(scale, torch.Tensor):
        return loss * scale.to(loss.device)
    return loss if scale == 1.0 else loss * scale


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Opens a block in which torch's functions run without casts, on this thread and at every level. Blocks nest."""
    if is_compiling():  # a graph contains this block (guards.py recognises cache_enabled)
        with torch.autocast("cpu", enabled=False, cache_enabled=False):
            yield
        return
    _core.enter_none()
    try:
        yield
    finally:
        _core.leave()
