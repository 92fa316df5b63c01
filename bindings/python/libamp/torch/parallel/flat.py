# SPDX-License-Identifier: Apache-2.0
"""Copies lists of tensors into flat buffers, one for each type and device, so that a collective works on one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..._words import counted
from .. import _tested_versions


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns a new 1-D tensor with the elements of all tensors, which share a type and a device. Raises RuntimeError
    if the list is empty."""
    if not tensors:
        raise RuntimeError("flatten: the list of tensors is empty")
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns views of `flat` with the shapes of `tensors`, in order. Raises RuntimeError if the sizes differ."""
    total = sum(tensor.numel() for tensor in tensors)
    if flat.numel() < total:
        raise RuntimeError(f"unflatten: {counted(flat.numel(), 'element')} for tensors of {total}")
    views = []
    begin = 0
    for tensor in tensors:
        views.append(flat[begin : begin + tensor.numel()].view(tensor.shape))
        begin += tensor.numel()
    return tuple(views)


def split_by_type(tensors: Iterable[torch.Tensor]) -> dict[tuple[torch.dtype, torch.device], list[torch.Tensor]]:
    """Groups tensors by type and device, so that each group can be flattened. Groups are in the order of their first
    tensor."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return groups


def for_the_wire(flat: torch.Tensor, group: Any = None, as_fp32: bool = False) -> torch.Tensor:
    """Returns the buffer to send. gloo of older releases does not support bfloat16."""
    if as_fp32 or (flat.dtype == torch.bfloat16 and dist.get_backend(group) == "gloo"):
        return flat.float()
    return flat


def apply_flat_dist_call(
    bucket: Sequence[torch.Tensor], call: Callable[..., Any], extra_args: Sequence[Any] | None = None
) -> None:
    """Applies `call` of torch.distributed to a flat copy of `bucket` and copies the result back. An all_reduce is
    averaged."""
    flat = for_the_wire(flatten(bucket))
    _tested_versions.several_gpus("libamp.torch.parallel", flat.device, dist.get_world_size())
    call(flat, *(extra_args or ()))
    if call is dist.all_reduce:
        flat /= dist.get_world_size()
    for tensor, result in zip(bucket, unflatten(flat, bucket), strict=True):
        tensor.copy_(result)


@torch.no_grad()
def flat_dist_call(
    tensors: Iterable[torch.Tensor], call: Callable[..., Any], extra_args: Sequence[Any] | None = None
) -> None:
    """Applies `call` to all tensors, one flat buffer for each type and device."""
    for bucket in split_by_type(tensors).values():
        apply_flat_dist_call(bucket, call, extra_args)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in nested lists, tuples, dicts and attributes of a forward's result."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for entry in value.values() for tensor in tensors_of(entry)]
    if isinstance(value, (list, tuple)):
        return [tensor for entry in value for tensor in tensors_of(entry)]
    return []


extract_tensors = tensors_of
