# SPDX-License-Identifier: Apache-2.0
"""Tensors, modules and storages that are created on a GPU or moved to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _device

from .devices import CPU, is_gpu, placed, replace

# Functions of torch and Tensor with device=, and pin_memory= where they allocate.
MAKERS = (
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like",
    "empty_permuted", "empty_strided", "eye", "full", "full_like", "hamming_window", "hann_window",
    "kaiser_window", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "range", "scalar_tensor", "sparse_compressed_tensor",
    "sparse_coo_tensor", "sparse_csr_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
METHODS = (
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros",
)  # fmt: skip
_library: Any = None  # as long as the process


def maker(own: Any) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        if is_gpu(kwargs.get("device")):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        return own(*args, **kwargs)

    return made


def _cuda(own: Any) -> Callable[..., Any]:
    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> torch.Tensor:
        return self.clone(memory_format=memory_format)  # a GPU tensor shares no memory with its source

    return cuda


def _cpu(own: Any) -> Callable[..., Any]:
    def cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
        return self.clone(memory_format=memory_format)  # a snapshot of weights must not change

    return cpu


def _to(own: Any) -> Callable[..., Any]:
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and is_gpu(args[0]):
            args = (CPU, *args[1:])
        elif is_gpu(kwargs.get("device")):
            kwargs["device"] = CPU
        else:
            return own(self, *args, **kwargs)
        return own(self, *args, **({} if len(args) > 3 else {"copy": True}) | kwargs)

    return to


def _module_to(own: Any) -> Callable[..., Any]:
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = placed(kwargs["device"])
        return own(self, *(placed(argument) for argument in args[:1]), *args[1:], **kwargs)

    return to


def _type_name(kind: Any) -> Any:
    return kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind


def _type(own: Any) -> Callable[..., Any]:
    def typed(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return own(self, _type_name(dtype), non_blocking, **kwargs)

    return typed


def unchanged(own: Any) -> Callable[..., Any]:
    """Wraps a method that returns its own object."""
    return lambda self, *args, **kwargs: self


def _first(own: Any) -> Callable[..., Any]:
    """Wraps a function, or __init__, whose first argument besides self is a device or a type."""
    return lambda *args, **kwargs: own(*(_type_name(placed(argument)) for argument in args), **kwargs)


def _storage_cuda(own: Any) -> Callable[..., Any]:
    return lambda self, device=None, non_blocking=False: self.clone()


class _Generators(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, what: Any) -> bool:
        return isinstance(what, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_Generators):
    """torch.Generator."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(device=placed(device))


def _below_python() -> None:
    """Gives CPU memory to a GPU that is named below Python (scripted code, extensions)."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    override = {"allow_override": True} if "allow_override" in torch.library.Library.impl.__code__.co_varnames else {}

    def empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
        return torch.ops.aten.empty.memory_format(size, dtype=dtype, device=CPU, memory_format=memory_format)

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return torch.ops.aten.empty_strided.default(size, stride, dtype=dtype, device=CPU)

    _library.impl("empty.memory_format", empty, "CUDA", **override)
    _library.impl("empty_strided", empty_strided, "CUDA", **override)


def install() -> None:
    _device._device_constructors()  # torch compares it by identity
    for name in MAKERS:
        replace(torch, name, maker)
    for name in METHODS:
        replace(torch.Tensor, name, maker)
    methods = {"cuda": _cuda, "cpu": _cpu, "to": _to, "type": _type, "pin_memory": unchanged}
    for name, make in methods.items():
        replace(torch.Tensor, name, make)
    replace(torch.Tensor, "record_stream", lambda own: lambda self, stream: None)
    replace(nn.Module, "to", _module_to)
    replace(nn.Module, "type", lambda own: lambda self, kind: own(self, _type_name(kind)))
    for kind in (torch.UntypedStorage, torch.storage.TypedStorage):
        replace(kind, "cuda", _storage_cuda)
        replace(kind, "pin_memory", unchanged)
    replace(torch, "set_default_device", _first)
    replace(torch, "set_default_tensor_type", _first)
    replace(_device.DeviceContext, "__init__", _first)
    torch.Generator = Generator
    torch.serialization.register_package(5, lambda storage: None, _restored)
    if _library is None:
        _below_python()


def _restored(storage: Any, location: str) -> Any:
    """Restores a GPU storage in torch.load."""
    return storage if location.startswith("cuda") else None
