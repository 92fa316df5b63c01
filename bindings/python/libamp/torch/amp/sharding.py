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
from .._dtensors import complete, is_dtensor
from . import fully_sharded
from .session import Session

_ADVICE = (
    'shard with torch\'s fully_shard(module, mp_policy=amp.fsdp_policy("{level}")), before the optimizer is made and '
    "amp.initialize is called, or use opt_level O1 or O4"
)
_MESH_ADVICE = (
    'call fully_shard(module, mesh=mesh["dp"], mp_policy=amp.fsdp_policy("{level}")) after parallelize_module, over a '
    "dimension of the mesh that may have one rank, or use opt_level O1 or O4"
)


# ---- sharded tensors ----


def _fsdp() -> Any:
    """Returns FullyShardedDataParallel, None if it is not imported."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)


def _is_flattened(tensor: Any) -> bool:
    """Returns True for a parameter of FullyShardedDataParallel, or the flat one that contains it."""
    return bool(getattr(tensor, "_fsdp_flattened", False))


def is_part(tensor: Any) -> bool:
    """Returns True if other ranks may have other elements of the tensor."""
    return _is_flattened(tensor) or is_dtensor(tensor)


def _has_fsdp1(model: torch.nn.Module) -> bool:
    kind = _fsdp()
    return kind is not None and any(isinstance(module, kind) for module in model.modules())


def _is_sharded(model: torch.nn.Module) -> bool:
    """Returns True if the model is sharded by either FSDP or contains DTensors. Between forward and backward
    fully_shard shows whole parameters."""
    wrapped = _has_fsdp1(model) or any(map(fully_sharded.is_fsdp, model.modules()))
    return wrapped or any(map(is_dtensor, model.parameters()))


_ZERO = ("ZeroRedundancyOptimizer", "ShardedOptimizer")  # torch's, and that of apex.contrib.optimizers


def _is_zero(optimizer: Any) -> bool:
    return any(cls.__name__ in _ZERO for cls in type(optimizer).__mro__)


def takes_gradients(optimizer: Any) -> bool:
    """Returns True if gradients leave the parameters before the optimizer's step, for a norm."""
    return any(cls.__name__ == "ShardedOptimizer" for cls in type(optimizer).__mro__)


# ---- which groups ----


def _mesh_groups(tensor: Any) -> Iterator[Any]:
    """Yields the groups of the ranks that hold the tensor. Replicas are among them: their gradients are equal, and once
    different they would not become equal again."""
    yield from (tensor.device_mesh.get_group(dim) for dim in range(tensor.device_mesh.ndim))


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
        tensor = torch.tensor(values, dtype=torch.float64)
        for group in self.groups:
            device = wire_device(dist.get_backend(group), self._device)
            _tested_versions.several_gpus("ranks that decide together", device, dist.get_world_size(group))
            tensor = tensor.to(device)
            dist.all_reduce(tensor, op=self._OPS[reduction], group=group)
        result: list[float] = tensor.tolist()  # the only wait for a GPU, however many groups there are
        return result


# ---- unsupported combinations ----


def _makes_low(resolved: dict[str, Any]) -> bool:
    return resolved["cast_model_type"] in ("float16", "bfloat16")


def check(
    models: Iterable[torch.nn.Module], optimizers: list[Any], resolved: dict[str, Any], level: str, stochastic: bool
) -> frozenset[int]:
    """Checks the models before initialize changes anything: levels that change types need whole parameters, or those of
    fully_shard, which has a policy. Returns the ids of the latter."""
    models = list(models)
    shards = fully_sharded.check(models, optimizers, resolved, level, stochastic)
    for model in models if _makes_low(resolved) else ():
        named = [(name, param) for name, param in model.named_parameters() if id(param) not in shards]
        tensors = [name for name, param in named if is_dtensor(param)]
        if tensors or _has_fsdp1(model) or any(_is_flattened(param) for _, param in named):
            what = f"DTensors ({fully_sharded.some(tensors)})" if tensors else "parts of FullyShardedDataParallel"
            advice = _MESH_ADVICE if tensors else _ADVICE
            raise RuntimeError(
                f"{level} makes parameters 16-bit, and these are {what}, whose storage is not their own to change: "
                f"{advice.format(level=level)}."
            )
    if resolved["master_weights"]:
        for optimizer in optimizers:
            if _is_zero(optimizer):
                raise RuntimeError(
                    f"{type(optimizer).__name__} keeps parameters, or shards of them, where FP32 masters cannot take "
                    "their place: use opt_level O1 or O4, or master_weights=False."
                )
    return shards if _makes_low(resolved) else frozenset()


def _check_later(session: Session, params: list[torch.Tensor]) -> None:
    """Checks, at a bracket, changes of the model after initialize."""
    sharded = any(map(is_part, params))
    if _makes_low(session.resolved) and any(is_part(param) and id(param) not in session.shards for param in params):
        raise RuntimeError(
            "Parameters were sharded after amp.initialize, which had made the whole of each 16-bit: "
            f"{_ADVICE.format(level=session.level)}."
        )
    models = [model for model in (ref() for ref in session.models) if model is not None]
    if params and not sharded and any(map(_is_sharded, models)):
        raise RuntimeError(
            "The model's parameters are not the optimizer's any more: fully_shard puts others in their place, and "
            "comes before the optimizer is made and amp.initialize is called: fully_shard(module, "
            f'mp_policy=amp.fsdp_policy("{session.level}")), then the optimizer, then amp.initialize.'
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
    session.dtensors = [param for param in params if is_dtensor(param)]
    session.groups = fully_sharded.groups_of(model for ref in session.models if (model := ref()) is not None)
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


def keeps_gradients(session: Session) -> bool:
    """Returns True if fully_shard will keep the gradients of this backward, scaled, and add them in a later one: the
    bracket is delayed, as with delay_unscale."""
    know_ranks(session)
    return fully_sharded.keep_gradients(session.groups)


def end(session: Session, bracket: Any, delay_unscale: bool = False) -> int:
    """Ends a bracket, once the gradients of DTensors are those of this step."""
    if session.dtensors and not delay_unscale:
        try:
            _complete_gradients(session)
        except BaseException:
            bracket.cancel()
            raise
    return bracket.end()


def _complete_gradients(session: Session) -> None:
    if fully_sharded.keep_gradients(session.groups):
        raise RuntimeError(
            "fully_shard has kept the gradients of this backward, which was unknown when the block began: "
            "call set_requires_gradient_sync or set_requires_all_reduce before the block"
        )
    for param in session.dtensors:
        whole = complete(param.grad, param)
        if whole is not param.grad:
            param.grad = whole
