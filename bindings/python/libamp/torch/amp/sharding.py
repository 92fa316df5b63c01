# SPDX-License-Identifier: Apache-2.0
"""Models and optimizers sharded between ranks: the ranks that agree on a skip, and unsupported combinations."""
from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import _tested_versions
from .session import Session

_ADVICE = (
    "use opt_level O1 or O4, or O0 with loss_scale='dynamic' and MixedPrecision(param_dtype=torch.float16) of FSDP's "
    "own: its shards are FP32 masters already"
)


# ---- sharded tensors ----


def _fsdp() -> Any:
    """Returns FullyShardedDataParallel, None if it is not imported."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)


def is_dtensor(tensor: Any) -> bool:
    """Returns True for a tensor of fully_shard or tensor parallelism. torch keeps this rank's part in _local_tensor."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "_local_tensor")


def local_part(tensor: Any) -> Any:
    """Returns the elements of this rank, possibly none."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def _is_flattened(tensor: Any) -> bool:
    """Returns True for a parameter of FullyShardedDataParallel, or the flat one that contains it."""
    return bool(getattr(tensor, "_fsdp_flattened", False))


def _is_sharded(model: torch.nn.Module) -> bool:
    """Returns True if the model is sharded by either FSDP or contains DTensors. Between forward and backward
    fully_shard shows whole parameters."""
    kind = _fsdp()
    wrapped = any(
        (kind and isinstance(module, kind)) or any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__)
        for module in model.modules()
    )
    return wrapped or any(map(is_dtensor, model.parameters()))


_ZERO = ("ZeroRedundancyOptimizer", "ShardedOptimizer")  # torch's, and that of apex.contrib.optimizers


def _is_zero(optimizer: Any) -> bool:
    return any(cls.__name__ in _ZERO for cls in type(optimizer).__mro__)


def takes_gradients(optimizer: Any) -> bool:
    """Returns True if gradients leave the parameters before the optimizer's step, for a norm."""
    return any(cls.__name__ == "ShardedOptimizer" for cls in type(optimizer).__mro__)


# ---- which groups ----


def _mesh_groups(tensor: Any) -> Iterator[Any]:
    """Yields the groups along which ranks hold different elements."""
    for dim, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            yield tensor.device_mesh.get_group(dim)


def _fsdp_groups() -> dict[int, Any]:
    """Returns groups by id of a parameter of FullyShardedDataParallel. It searches all objects, because a model does
    not know its wrapper."""
    found: dict[int, Any] = {}
    kind = _fsdp()
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)] if kind else []
    for module in modules:
        handle = getattr(module, "_handle", None)
        if handle is not None:
            for param in (handle.flat_param, *(handle.flat_param._params or ())):
                found[id(param)] = module.process_group
    return found


def _groups_of(optimizers: Iterable[Any], params: list[torch.Tensor]) -> list[Any]:
    """Returns the groups in an order that is equal on every rank: that of optimizers and parameters."""
    groups: list[Any] = [optimizer.process_group for optimizer in optimizers if _is_zero(optimizer)]
    wrapped = _fsdp_groups() if any(map(_is_flattened, params)) else {}
    for param in params:
        if is_dtensor(param):
            groups.extend(_mesh_groups(param))
        elif _is_flattened(param):
            groups.append(wrapped.get(id(param), dist.group.WORLD))
    return [group for i, group in enumerate(groups) if not any(group is other for other in groups[:i])]


def check_group(group: Any) -> None:
    """Checks the argument process_group of initialize."""
    if group is None or isinstance(group, bool):
        return
    if not dist.is_available() or not (
        isinstance(group, dist.ProcessGroup) or group == dist.GroupMember.NON_GROUP_MEMBER
    ):
        raise TypeError(f"process_group is a group of torch.distributed, True, False or None, not {group!r}")


def wire_device(backend: str, device: torch.device) -> torch.device:
    """Returns the device of a tensor that this backend can send. device: of the parameters, which may be off the GPU
    (offloading)."""
    if backend == "gloo":
        return torch.device("cpu")
    return torch.device("cuda") if backend == "nccl" and device.type == "cpu" else device


class Ranks:
    """Called by the library when ranks must agree: `reduction` of the values over each group in turn."""

    _OPS = {1: dist.ReduceOp.MAX, 2: dist.ReduceOp.SUM} if dist.is_available() else {}

    def __init__(self, groups: list[Any], device: torch.device) -> None:
        self.groups, self._device = groups, device

    def __call__(self, reduction: int, values: list[float]) -> list[float]:
        for group in self.groups:
            device = wire_device(dist.get_backend(group), self._device)
            _tested_versions.several_gpus("ranks that decide together", device, dist.get_world_size(group))
            tensor = torch.tensor(values, dtype=torch.float64, device=device)
            dist.all_reduce(tensor, op=self._OPS[reduction], group=group)
            values = tensor.tolist()
        return values


# ---- unsupported combinations ----


def _makes_low(resolved: dict[str, Any]) -> bool:
    return resolved["cast_model_type"] in ("float16", "bfloat16")


def check(models: Iterable[torch.nn.Module], optimizers: Iterable[Any], resolved: dict[str, Any]) -> None:
    """Checks the models before initialize changes anything: levels that change types need whole parameters."""
    if _makes_low(resolved):
        for model in models:
            if _is_sharded(model):
                raise RuntimeError(
                    "This opt_level makes parameters 16-bit, and those of the incoming model are sharded (FSDP, "
                    f"fully_shard or another DTensor), whose storage is not its own to change: {_ADVICE}."
                )
    if resolved["master_weights"]:
        for optimizer in optimizers:
            if _is_zero(optimizer):
                raise RuntimeError(
                    f"{type(optimizer).__name__} keeps parameters, or shards of them, where FP32 masters cannot take "
                    "their place: use opt_level O1 or O4, or master_weights=False."
                )


def _check_later(session: Session, params: list[torch.Tensor]) -> None:
    """Checks, at a bracket, changes of the model after initialize."""
    sharded = any(_is_flattened(param) or is_dtensor(param) for param in params)
    if sharded and _makes_low(session.resolved):
        raise RuntimeError(
            f"Parameters were sharded after amp.initialize, which had made the whole of each 16-bit: {_ADVICE}."
        )
    models = [model for model in (ref() for ref in session.models) if model is not None]
    if params and not sharded and any(map(_is_sharded, models)):
        raise RuntimeError(
            "The model's parameters are not the optimizer's any more: fully_shard puts others in their place, and "
            "comes before the optimizer is made and amp.initialize is called."
        )


# ---- at a bracket ----


def _join(session: Session) -> None:
    """Finds the ranks before the session's first bracket, and before the first one after its parameters have
    changed."""
    optimizers = [optimizer for optimizer in (ref() for ref in session.optimizers) if optimizer is not None]
    params = [param for i in range(len(session.optimizers)) for param, _ in session.context.masters(i)]
    _check_later(session, params)
    named = session.process_group
    if named is None:
        groups = _groups_of(optimizers, params)
    else:
        groups = [] if named is False else [dist.group.WORLD if named is True else named]
    groups = [group for group in groups if dist.get_world_size(group) > 1]
    device = next((param.device for param in params), torch.device("cpu"))
    session.context.set_ranks(Ranks(groups, device) if groups else None, named is not None)
    session.ranks_known = True


def know_ranks(session: Session) -> None:
    """Finds the ranks before anyone reads parameters that may have been sharded since initialize."""
    if not session.ranks_known and dist.is_initialized():
        _join(session)


def begin(
    session: Session, indices: list[int], loss_id: int, delay_unscale: bool = False, delay_check: bool = False
) -> Any:
    """Begins a bracket of a session, of scale_loss or a script. Ranks and masters are updated before the first one."""
    know_ranks(session)
    if not session.backward_seen:
        session.before_first_backward()
    begin = functools.partial(session.context.begin, indices, loss_id, delay_unscale, delay_check)
    return begin() if session.sparse is None else session.sparse.begin(session, indices, delay_unscale, begin)
