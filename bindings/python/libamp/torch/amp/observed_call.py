# SPDX-License-Identifier: Apache-2.0
"""The tensors and numbers of one torch call, by name, for amp.observe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

# Functions that move or describe elements, without arithmetic.
CASTS = frozenset(("to", "type", "type_as", "float", "half", "bfloat16", "double"))
_MOVES = """cpu cuda clone contiguous detach detach_ requires_grad_ backward
    register_hook zero_ fill_ copy_ item tolist numpy unbind empty_like zeros_like ones_like full_like rand_like
    randn_like new_zeros new_ones new_empty new_full new_tensor
    __get__ __set__ __delete__ __setitem__ __deepcopy__ __repr__ __format__ __iter__"""
NO_OPS = frozenset(_MOVES.split()) | CASTS
ARGUMENTS = {0: "input", 1: "other", 2: "argument 2"}
_WEIGHTED = {1: "weight", 2: "bias"}
_HAS_WEIGHT = ("linear", "bilinear", "conv", "prelu", "embedding")


def _never(value: Any) -> bool:
    return False


# In vmap and grad of torch.func: these have no elements of their own.
_is_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", _never)


def is_readable(value: Any) -> bool:
    """Returns True if the library can read the elements. Others (sparse, sharded, transformed) are omitted."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and value.device.type != "meta"
        and value.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        and not _is_wrapped(value)
    )


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if is_readable(value):
            yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def named(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    weighted = op.startswith(_HAS_WEIGHT)
    for i, arg in enumerate(args):
        name = _WEIGHTED.get(i) if weighted else None
        for tensor in tensors(arg):
            yield name or ARGUMENTS.get(i, f"argument {i}"), tensor
    for key, arg in kwargs.items():
        for tensor in tensors(arg):
            yield key, tensor


def constants(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields numeric arguments that a 16-bit op may not represent. The epsilon of a normalization is FP32 in its
    kernel."""
    if op.endswith("norm"):
        return
    for name, value in (*((ARGUMENTS.get(i, f"argument {i}"), arg) for i, arg in enumerate(args)), *kwargs.items()):
        if type(value) is float and math.isfinite(value):
            yield name, torch.tensor(value, dtype=torch.float32)


def is_in_place(op: str, kwargs: dict[str, Any]) -> bool:
    if op.startswith("__i") and op.endswith("__"):
        return op not in ("__invert__", "__index__", "__int__", "__iter__")
    return bool(kwargs.get("inplace")) or (op.endswith("_") and not op.endswith("__"))
