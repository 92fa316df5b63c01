# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a sharded optimizer: whole tensors for each parameter, or the shards themselves."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist

from ._buckets import Bucket, Gathering

# ---- whole ----


def _tensors(bucket: Bucket, moments: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Returns the tensors of the shard by their names in a checkpoint."""
    return {"param": bucket.masters(), **{name: bucket.state[name] for name in moments}}


@torch.no_grad()
def save_whole(optimizer: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
    optimizer.grad_sync()
    numbers = _numbers(optimizer, groups)
    state: dict[Any, Any] = {"step": optimizer._steps, **{index: {} for index in numbers.values()}}
    for bucket in optimizer._buckets:
        for name, shard in _tensors(bucket, optimizer._moments).items():
            whole = Gathering(shard.to(bucket.kind.state), optimizer.distributed_process_group).wait()
            for param, values in bucket.pieces(whole):
                place = torch.empty_like(param, dtype=whole.dtype, device="cpu", requires_grad=False)
                state[numbers[param]][name] = place.copy_(values)
    return {"state": state, "param_groups": groups, "format": 2}


def _numbers(optimizer: Any, groups: list[dict[str, Any]]) -> dict[torch.Tensor, Any]:
    """Returns the number of each parameter in a checkpoint."""
    indices = (index for group in groups for index in group["params"])
    return dict(zip(optimizer.parameters(), indices, strict=True))


@torch.no_grad()
def load_whole(optimizer: Any, state_dict: dict[str, Any]) -> None:
    optimizer.init_params()
    optimizer._reset()
    numbers, state = _numbers(optimizer, state_dict["param_groups"]), state_dict["state"]
    _check(numbers, state, optimizer)
    for bucket in optimizer._buckets:
        for name in ("param", *optimizer._moments):
            whole = bucket.empty(torch.float32)
            for param, place in bucket.pieces(whole):
                place.copy_(state[numbers[param]][name])
            if name == "param":
                bucket.keep(whole[bucket.own])
                bucket.put(bucket.as_sent(whole))
            else:
                bucket.state[name].copy_(whole[bucket.own])
    optimizer._steps = int(state["step"])


def _check(numbers: dict[torch.Tensor, Any], state: dict[Any, Any], optimizer: Any) -> None:
    """Checks the state before anything changes."""
    for param, index in numbers.items():
        for name in ("param", *optimizer._moments):
            saved = state.get(index, {}).get(name)
            if saved is None or saved.shape != param.shape:
                have = "is not there" if saved is None else f"has the shape {tuple(saved.shape)}"
                raise ValueError(
                    f"{type(optimizer).__name__}.load_state_dict: {name!r} of parameter {index}, which has the shape "
                    f"{tuple(param.shape)}, {have} in the state dict"
                )


# ---- shards ----


@torch.no_grad()
def save_shards(optimizer: Any, groups: list[dict[str, Any]], gather_on_root: bool) -> dict[str, Any] | None:
    optimizer.grad_sync()
    shards = [_tensors(bucket, optimizer._moments) for bucket in optimizer._buckets]
    own = {
        "state": {"step": optimizer._steps},
        "buckets": [{name: tensor.cpu().clone() for name, tensor in bucket.items()} for bucket in shards],
        "param_groups": groups,
        "ranks": (optimizer.distributed_rank, optimizer.distributed_size),
        "format": 1,
    }
    if not gather_on_root:
        return own
    stream = io.BytesIO()
    torch.save(own, stream)
    told: list[Any] = [None] * optimizer.distributed_size
    dist.all_gather_object(told, stream.getvalue(), group=optimizer.distributed_process_group)
    if dist.get_rank(optimizer.process_group) != 0:
        return None
    return {"gathered_states": [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in told], "format": 1}


def own_shards(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns this rank's shards from a state that may have those of all ranks."""
    here = optimizer.distributed_rank, optimizer.distributed_size
    gathered = state_dict.get("gathered_states", ())
    if len(gathered) == here[1]:
        state_dict = torch.load(io.BytesIO(gathered[here[0]].numpy().tobytes()), weights_only=True)
    there = tuple(state_dict.get("ranks", ("each", len(gathered))))
    optimizer.init_params()
    sizes = [bucket.shard_size for bucket in optimizer._buckets]
    if there != here or [len(bucket["param"]) for bucket in state_dict["buckets"]] != sizes:
        raise RuntimeError(
            f"{type(optimizer).__name__}.load_state_dict: a state dict of format 1 is for the rank, of as many, that "
            f"saved it, with buckets of the same size: it is from rank {there[0]} of {there[1]}, and this is rank "
            f"{here[0]} of {here[1]}. Any number of ranks can load the result of state_dict() without a format"
        )
    return state_dict


@torch.no_grad()
def load_shards(optimizer: Any, state_dict: dict[str, Any]) -> None:
    optimizer._reset()
    for bucket, saved in zip(optimizer._buckets, state_dict["buckets"], strict=True):
        for name in optimizer._moments:
            bucket.state[name].copy_(saved[name])
        masters = saved["param"].to(bucket.device, torch.float32)
        bucket.keep(masters)
        bucket.put(Gathering(bucket.as_sent(masters), optimizer.distributed_process_group).wait())
    optimizer._steps = int(state_dict["state"]["step"])

