# SPDX-License-Identifier: Apache-2.0
"""Batch norms of a finished model become synchronised ones; groups of ranks for them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from .sync_batchnorm import SyncBatchNorm

_OWN = ("process_group", "channel_last", "fuse_relu")


def convert_syncbn_model(module: nn.Module, process_group: Any = None, channel_last: bool = False) -> nn.Module:
    """
    The module with every batch norm in it replaced, itself too. Parameters and running statistics are the very same
    objects, so that an optimizer made before stays right; training mode and hooks stay. InstanceNorm is left alone.
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
    """
    The group of so many neighbouring ranks that this rank is in; 0: None, which is all. Every rank has to call it; the
    number of ranks is a multiple of the size.
    """
    if group_size == 0:
        return None
    world = dist.get_world_size()
    if group_size < 0 or world < group_size or world % group_size != 0:
        raise AssertionError(
            f"create_syncbn_process_group: {world} ranks cannot be divided into groups of {group_size}"
        )
    mine = None
    for first in range(0, world, group_size):
        ranks = list(range(first, first + group_size))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine
