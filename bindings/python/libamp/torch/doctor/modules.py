# SPDX-License-Identifier: Apache-2.0
"""Which module of the model calls an op, and the names of tensors that enter an iteration. Only iterations that are
watched op by op have the hooks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .._dtensors import local_part
from .names import Names, plain


class Modules:
    """The modules, user Functions and memory of the live models."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.by_id: dict[int, tuple[str, str]] = {}
        self.memory: dict[int, str] = {}
        self.functions: dict[Any, tuple[str, bool]] = {}
        self.stack: list[nn.Module] = []
        self.inputs: dict[int, str] = {}
        self.batch: dict[int, str] = {}
        self._handles: list[Any] = []

    def read(self) -> None:
        """Reads them anew, before an iteration that is watched."""
        self.by_id, self.memory = {}, {}
        for model in self.names.trained():
            for name, module in model.named_modules():
                self.by_id[id(module)] = (plain(name + ".")[:-1], type(module).__name__)
                for own, tensor in (*module._parameters.items(), *module._buffers.items()):
                    if tensor is not None and (address := address_of(tensor)):
                        self.memory[address] = plain(f"{name}.{own}").lstrip(".")
        self.functions = {}
        _functions(torch.autograd.Function, self.functions)

    def enter(self) -> None:
        """Follows the calls of modules, by torch's hooks for all modules, until leave()."""
        self.stack = []
        global_hooks = torch.nn.modules.module
        self._handles = [
            global_hooks.register_module_forward_pre_hook(self._called),
            global_hooks.register_module_forward_hook(self._returned),
        ]

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self.stack, self.inputs = [], [], {}

    def _called(self, module: nn.Module, inputs: Any) -> None:
        if not self.stack:
            for index, value in enumerate(inputs if isinstance(inputs, tuple) else ()):
                for key, tensor in tensors_of(value, f"argument {index + 1} of {type(module).__name__}"):
                    self.inputs[address_of(tensor)] = key
        self.stack.append(module)

    def _returned(self, module: nn.Module, inputs: Any, output: Any) -> None:
        while self.stack and self.stack.pop() is not module:
            pass  # a module above it that raised

    def where(self) -> tuple[str, str, str, bool]:
        """Returns name and class of the innermost module that runs, and class of a user's Function on the stack, and
        whether that has custom_fwd."""
        name, kind = self.by_id.get(id(self.stack[-1]), ("", type(self.stack[-1]).__name__)) if self.stack else ("", "")
        frame: Any = sys._getframe(1) if self.functions else None
        while frame is not None:
            if frame.f_code in self.functions:
                return (name, kind, *self.functions[frame.f_code])
            frame = frame.f_back
        return name, kind, "", False

    def outside(self, tensor: Any) -> tuple[str, str]:
        """Returns what a tensor is that no op of the iteration made: ("weight", its name) or ("batch", its key)."""
        address = address_of(tensor)
        if address in self.memory:
            return "weight", self.memory[address]
        shape = tuple(tensor.shape)
        return "batch", self.batch.get(address) or self.inputs.get(address) or f"a tensor of shape {shape}"

    def on_batch(self, tensors: list[tuple[str, Any]]) -> None:
        """Notes the keys of a batch of a DataLoader. The batch itself is not kept."""
        self.batch = {address_of(tensor): key for key, tensor in tensors}


def address_of(tensor: Any) -> int:
    """Returns the address of a tensor's memory, 0 if it has none."""
    local = local_part(tensor)
    if local.layout is not torch.strided or local.device.type == "meta":
        return 0
    return int(local.untyped_storage().data_ptr())


def tensors_of(value: Any, name: str, depth: int = 3) -> list[tuple[str, Any]]:
    """Returns the tensors in a batch with their keys."""
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    if not depth:
        return []
    if isinstance(value, Mapping):
        items = [(f"{name}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{index}]", each) for index, each in enumerate(value[:100])]
    else:
        return []
    return [found for key, each in items for found in tensors_of(each, key, depth - 1)]


def _functions(base: Any, found: dict[Any, tuple[str, bool]]) -> None:
    """Adds the forwards of Functions that are not torch's own."""
    for kind in base.__subclasses__():
        _functions(kind, found)
        forward = vars(kind).get("forward")
        forward = getattr(forward, "__func__", forward)
        if kind.__module__.partition(".")[0] in ("torch", "libamp") or forward is None:
            continue
        inner = forward
        while hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        if hasattr(inner, "__code__"):
            wrapper = getattr(getattr(forward, "__code__", None), "co_filename", "")
            found[inner.__code__] = (kind.__name__, inner is not forward and "autocast_mode" in wrapper)
