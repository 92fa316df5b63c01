# SPDX-License-Identifier: Apache-2.0
"""Models and the names of parameters, found among Python's objects: no module is wrapped or hooked for it."""

from __future__ import annotations

import inspect
import re
import weakref
from typing import Any

import torch
from torch import nn

from ..._findings import Place
from .._dtensors import local_part
from .._living import living
from .samples import is_readable, part
from .watch import NOWHERE, SAMPLE, Buffer, Model, Module

WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel", "AveragedModel")
_INSIDE = re.compile(r"\b(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_SIZES = ("in_features", "out_features", "in_channels", "out_channels", "num_embeddings", "embedding_dim", "groups",
          "num_heads", "hidden_size", "num_features")  # fmt: skip
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, getattr(nn, "RMSNorm", nn.LayerNorm))


def plain(name: str) -> str:
    """Returns a parameter's name without those of wrappers."""
    return _INSIDE.sub("", name)


def _subclasses(kind: Any, found: set[Any]) -> set[Any]:
    for each in type.__subclasses__(kind):
        if each not in found:
            found.add(each)
            _subclasses(each, found)
    return found


def roots() -> list[nn.Module]:
    """Returns the modules with parameters that no other module contains, in the order in which they were made."""
    kinds = _subclasses(nn.Module, {nn.Module})
    found = [module for module in living(frozenset(kinds)) if "_modules" in vars(module)]
    inside = {id(child) for module in found for child in list(module._modules.values())}
    return [module for module in found if id(module) not in inside and any(True for _ in module.parameters())]


def optimizers() -> list[Any]:
    """Returns torch's optimizers of the process."""
    kinds = _subclasses(torch.optim.Optimizer, {torch.optim.Optimizer})
    return [optimizer for optimizer in living(frozenset(kinds)) if "param_groups" in vars(optimizer)]


def own_kind(model: nn.Module) -> tuple[str, str]:
    """Returns the class of a model below its wrappers, and the outermost wrapper."""
    wrapper, inner = "", model
    while type(inner).__name__ in WRAPPERS:
        wrapper = wrapper or type(inner).__name__
        below = next(iter(inner._modules.values()), None)
        if below is None:
            break
        inner = below
    if not wrapper and type(inner).__name__.startswith("FSDP"):
        wrapper = "fully_shard"
    return type(inner).__name__.removeprefix("FSDP"), wrapper


def is_compiled(model: nn.Module) -> bool:
    """Returns True for a model of torch.compile or of a part with compile()."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def line_of(module: nn.Module) -> Place:
    """Returns the line of the class of a module that is not torch's own."""
    kind = type(module)
    if kind.__module__.startswith("torch."):
        return NOWHERE
    try:
        return Place(inspect.getsourcefile(kind) or "", inspect.getsourcelines(kind)[1], kind.__module__)
    except (OSError, TypeError):
        return NOWHERE


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _buffer(name: str, tensor: Any, persistent: bool, taken: list[tuple[Buffer, Any]]) -> Buffer:
    made = Buffer(name, _dtype(tensor), tuple(tensor.shape), persistent=persistent)
    local = local_part(tensor).detach()
    if is_readable(local) and local.numel():
        taken.append((made, part(local, max(1, local.numel() // SAMPLE)).clone()))
    return made


def read_buffers(taken: list[tuple[Buffer, Any]]) -> None:
    """Reads the samples of buffers, after the run."""
    for made, sample in taken:
        values = sample.cpu().double()
        finite = values[torch.isfinite(values)]
        if finite.numel():
            made.largest, made.least = float(finite.abs().max()), float(finite.abs().min())
        made.whole = bool((finite == finite.round()).all())
        if values.numel() > 2:
            steps = values.diff()
            rises = bool((steps >= 0).all()) or bool((steps <= 0).all())
            made.monotone = rises and sum(extent > 1 for extent in made.shape) == 1
            made.distinct_lost = int((steps == 0).sum()) if made.monotone and bool((steps != 0).any()) else 0


def _module(name: str, module: nn.Module, taken: list[tuple[Buffer, Any]]) -> Module:
    missing: Any = getattr(module, "_non_persistent_buffers_set", set())
    sizes = {key: value for key in _SIZES if isinstance(value := vars(module).get(key), int)}
    eps = vars(module).get("eps", vars(module).get("variance_epsilon", 0.0))
    return Module(
        plain(name + ".")[:-1],
        type(module).__name__,
        line_of(module),
        {key: _dtype(param) for key, param in module._parameters.items() if param is not None},
        [_buffer(key, value, key not in missing, taken) for key, value in module._buffers.items() if value is not None],
        sizes,
        float(eps) if isinstance(eps, (int, float)) else 0.0,
        module.training,
        isinstance(module, _NORMS) or type(module).__name__.endswith("Norm"),
    )


def describe(model: nn.Module, taken: list[tuple[Buffer, Any]]) -> Model:
    """Describes a model and those of its modules that have parameters or buffers. Adds samples of the buffers."""
    kind, wrapper = own_kind(model)
    made = Model(kind, is_compiled(model), wrapper)
    for param in model.parameters():
        made.params += 1
        made.elements += param.numel()
        made.dtypes[_dtype(param)] = made.dtypes.get(_dtype(param), 0) + param.numel()
    made.modules = [
        _module(name, module, taken)
        for name, module in model.named_modules()
        if any(value is not None for value in (*module._parameters.values(), *module._buffers.values()))
    ]
    return made


class Names:
    """The models of the process and the names of their parameters, by identity. Trained models have a number in the
    record."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}  # by index in models: index in Run.models
        self.taken: list[tuple[Buffer, Any]] = []
        self.grads: dict[int, tuple[int, int] | None] = {}  # by index in models: a gradient and its version
        self.models: list[weakref.ref[nn.Module]] = []
        self.of: dict[int, tuple[int, str]] = {}  # id of a parameter: index of its model, name

    def live(self) -> list[nn.Module | None]:
        return [ref() for ref in self.models]

    def trained(self) -> list[nn.Module]:
        """Returns the models that are in the record."""
        live = self.live()
        return [model for index in self.numbers if (model := live[index]) is not None]

    def name(self, key: int, other: str) -> tuple[int, str]:
        """Returns the number of a parameter's model, or -1, and its name, or the other."""
        index, name = self.of.get(key, (-1, other))
        return self.numbers.get(index, -1), name

    def _is_trained(self, index: int, model: nn.Module) -> bool:
        """Returns True if a gradient of the model is another one than at the last call: old models may have some."""
        grad = next((param.grad for param in model.parameters() if param.grad is not None), None)
        before, now = self.grads.get(index), None if grad is None else (id(grad), grad._version)
        known, self.grads[index] = index in self.grads, now
        return known and now is not None and now != before

    def relate(self, owned: set[int]) -> list[Model]:
        """Gives a number to models with a parameter of an optimizer, or with a gradient that changes. Returns their
        descriptions."""
        made = []
        for index, model in enumerate(self.live()):
            if model is None or index in self.numbers:
                continue
            if any(id(param) in owned for param in model.parameters()) or self._is_trained(index, model):
                self.numbers[index] = len(self.numbers)
                made.append(describe(model, self.taken))
        return made

    def scan(self) -> None:
        """Adds the models that are new. It takes about as long as a collection of garbage."""
        known = {id(model) for model in self.live()}
        for model in roots():
            if id(model) in known:
                continue
            self.models.append(weakref.ref(model))
            for name, param in model.named_parameters():
                self.of.setdefault(id(param), (len(self.models) - 1, plain(name)))
