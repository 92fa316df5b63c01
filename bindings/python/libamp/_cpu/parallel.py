# SPDX-License-Identifier: Apache-2.0
"""gloo replaces NCCL, parallel wrappers have one device, data is not pinned, and batch norm over ranks is libamp's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .devices import replace


def _backend(name: Any) -> Any:
    return "gloo" if "nccl" in str(name).lower() else name


def _init_process_group(own: Any) -> Callable[..., Any]:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return own(_backend(backend or "gloo"), *args, **kwargs)

    return init_process_group


def _new_group(own: Any) -> Callable[..., Any]:
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = {} if timeout is None else {"timeout": timeout}
        names = ("pg_options", "use_local_synchronization", "group_desc", "device_id")
        kwargs = given | dict(zip(names, args)) | kwargs
        kwargs.pop("device_id", None)
        return own(ranks, backend=_backend(backend), **kwargs)

    return new_group


def _barrier(own: Any) -> Callable[..., Any]:
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, **kwargs: Any) -> Any:
        return own(group, async_op, **kwargs)

    return barrier


def _data_parallel_of_ranks(own: Any) -> Callable[..., None]:
    def __init__(
        self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        own(self, module, None, None, *args, **kwargs)

    return __init__


def _data_parallel(own: Any) -> Callable[..., Any]:
    def data_parallel(
        module: nn.Module,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))

    return data_parallel


def _loader(own: Any) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        self.pin_memory = False

    return __init__


def _sync_batch_norm(own: Any) -> Callable[..., torch.Tensor]:
    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        from ..torch.parallel import SyncBatchNorm  # imported on use, because it imports more than torch

        for name in ("forward", "_track", "_evaluate"):
            setattr(nn.SyncBatchNorm, name, getattr(SyncBatchNorm, name))
        return self.forward(input)

    return forward


def install() -> None:
    distributed = torch.distributed
    if distributed.is_available():
        makes = {"init_process_group": _init_process_group, "new_group": _new_group, "barrier": _barrier}
        for name, make in makes.items():
            setattr(distributed, name, replace(distributed.distributed_c10d, name, make))
        wrapper = nn.parallel.DistributedDataParallel
        replace(wrapper, "__init__", _data_parallel_of_ranks)
        replace(wrapper, "_passing_sync_batchnorm_handle", lambda own: lambda *args: None)  # it refuses CPU tensors
    module: Any = sys.modules["torch.nn.parallel.data_parallel"]  # in the package this name is the function's
    module._get_available_device_type = lambda: None
    nn.parallel.data_parallel = replace(module, "data_parallel", _data_parallel)
    replace(torch.utils.data.DataLoader, "__init__", _loader)
    nn.SyncBatchNorm.channel_last = nn.SyncBatchNorm.fuse_relu = False
    replace(nn.SyncBatchNorm, "forward", _sync_batch_norm)
