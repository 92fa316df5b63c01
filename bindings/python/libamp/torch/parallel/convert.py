# SPDX-License-Identifier: Apache-2.0
"""Converts the batch norms of a model to synchronised ones, and makes process groups for them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from ..._words import counted
from .sync_batchnorm import SyncBatchNorm

_OWN = ("process_group", "channel_last", "fuse_relu")


def convert_syncbn_model(module: nn.Module, process_group: Any = None, channel_last: bool = False) -> nn.Module:
    """Returns the module with every batch norm replaced by SyncBatchNorm, itself included.

    Parameters and running statistics are the same objects, so that an existing optimizer remains valid. Training mode
    and hooks remain. InstanceNorm is not replaced. Raises ValueError for a lazy batch norm that has not run.
    """
    return _convert(module, process_group, channel_last, {})


def _convert(module: nn.Module, group: Any, channel_last: bool, done: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in done:
        new = module
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            new = _synchronised(module, group, channel_last)
        done[id(module)] = new
        for name, child in module._modules.items():
            if child is not None:
                new._modules[name] = _convert(child, group, channel_last, done)
    return done[id(module)]


def _synchronised(module: nn.modules.batchnorm._BatchNorm, group: Any, channel_last: bool) -> SyncBatchNorm:
    if nn.parameter.is_lazy(module.weight):
        raise ValueError("convert_syncbn_model: run a lazy batch norm once before it is converted")
    new = SyncBatchNorm.__new__(SyncBatchNorm)
    new.__dict__.update({name: value for name, value in module.__dict__.items() if name not in _OWN})
    new._modules = dict(module._modules)
    new.process_group = group
    new.channel_last = channel_last
    new.fuse_relu = False
    return new


def create_syncbn_process_group(group_size: int) -> Any:
    """Returns the process group of `group_size` neighbouring ranks that contains this rank. 0 returns None, which means
    all ranks.

    Every rank must call it. Raises AssertionError if the number of ranks is no multiple of the size.
    """
    if group_size == 0:
        return None
    world = dist.get_world_size()
    if group_size < 0 or world < group_size or world % group_size != 0:
        raise AssertionError(
            f"create_syncbn_process_group: {counted(world, 'rank')} cannot be divided into groups of {group_size}"
        )
    mine = None
    for first in range(0, world, group_size):
        ranks = list(range(first, first + group_size))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine
