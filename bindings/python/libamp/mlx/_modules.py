# SPDX-License-Identifier: Apache-2.0
"""Models with the types of a level, and wrappers around the calls of their modules. MLX has no hooks, so a module that
needs one gets its own class, derived from its class and with the same name."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from ._ops import TYPES, cast

Arrays = dict[str, mx.array]
Forward = Callable[..., Any]
Around = Callable[..., Any]  # (forward, *args, **kwargs): replaces the call of a module

_FLOATING = tuple(TYPES.values())
_made: dict[type, type] = {}


def _hooked(cls: type) -> type:
    if cls in _made:
        return _made[cls]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            return cls.__call__(self, *args, **kwargs)

        for around in self.__dict__.get("_libamp_around", ()):
            forward = _around(around, forward)
        return forward(*args, **kwargs)

    def reduce(self: Any, _protocol: Any) -> Any:
        """Copies and pickles are of its own class, and no session's."""
        own = {name: value for name, value in self.__dict__.items() if not name.startswith("_libamp")}
        return dict.__new__, (cls,), own, None, iter(self.items())

    names = {"__call__": call, "__reduce_ex__": reduce, "_libamp_class": cls, "__doc__": cls.__doc__}
    places = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return _made.setdefault(cls, type(cls.__name__, (cls,), {**names, **places}))


def _around(around: Around, forward: Forward) -> Forward:
    return lambda *args, **kwargs: around(forward, *args, **kwargs)


def hook(module: nn.Module, around: Around) -> None:
    """Adds a wrapper. The last one is the outermost."""
    if not hasattr(type(module), "_libamp_class"):
        module.__class__ = _hooked(type(module))
    object.__setattr__(module, "_libamp_around", (*module.__dict__.get("_libamp_around", ()), around))


def unhook(module: nn.Module) -> None:
    if hasattr(type(module), "_libamp_class"):
        module.__class__ = type(module)._libamp_class
        module.__dict__.pop("_libamp_around", None)


def cast_all(tree: Any, dtype: mx.Dtype) -> Any:
    return tree_map(lambda value: cast(value, dtype), tree)


def casts_inputs(dtype: mx.Dtype) -> Around:
    """Returns a wrapper that casts the inputs of a module to the type of its parameters. MLX would compute in the wider
    type."""

    def around(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        return forward(*cast_all(args, dtype), **cast_all(kwargs, dtype))

    return around


def casts_outputs(dtype: mx.Dtype) -> Around:
    def around(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        return cast_all(forward(*args, **kwargs), dtype)

    return around


def in_fp32(forward: Forward, x: mx.array) -> mx.array:
    """Runs a batch norm with statistics in FP32. The result has the type of the input."""
    return forward(cast(x, mx.float32)).astype(x.dtype)


def is_floating(value: Any) -> bool:
    return isinstance(value, mx.array) and value.dtype in _FLOATING


def nested(arrays: Arrays) -> Any:
    """Returns a tree from arrays by path."""
    return tree_unflatten(list(arrays.items())) if arrays else {}


class TypedModel:
    """A model, and the types of its parameters under a level's settings."""

    def __init__(self, model: nn.Module, settings: dict[str, Any], casts_calls: bool) -> None:
        self.model = model
        self.type = TYPES.get(settings["cast_model_type"] or "")
        self._norms_in_fp32 = casts_calls or settings["keep_batchnorm_fp32"]
        self._outputs = TYPES.get(settings["cast_model_outputs"] or "")
        self.types = self._wanted() if self.type else {}
        self._original = {path: self.parameters()[path].dtype for path in self.types}

    def parameters(self) -> Arrays:
        return dict(tree_flatten(self.model.parameters()))

    def trainable(self) -> Arrays:
        return {path: value for path, value in tree_flatten(self.model.trainable_parameters()) if is_floating(value)}

    def is_low(self, path: str) -> bool:
        return self.types.get(path, mx.float32) != mx.float32

    def _is_norm(self, module: nn.Module) -> bool:
        return isinstance(module, nn.BatchNorm) and self._norms_in_fp32

    def _wanted(self) -> dict[str, mx.Dtype]:
        """Returns the wanted types. A frozen parameter that is not FP32 keeps its type."""
        trained = self.trainable()
        types: dict[str, mx.Dtype] = {}
        for place, module in self.model.named_modules():
            for name, value in tree_flatten(module.parameters()):
                path = f"{place}.{name}" if place else name
                if is_floating(value) and (path in trained or value.dtype == mx.float32):
                    types[path] = mx.float32 if self._is_norm(module) else types.get(path, self.type)
        return types

    def strange(self, values: Arrays) -> list[str]:
        """Returns the paths with another type than wanted."""
        return [path for path, dtype in self.types.items() if values[path].dtype != dtype]

    def retype(self, values: Arrays) -> None:
        self.model.update(nested({path: values[path].astype(self.types[path]) for path in self.strange(values)}))

    def hook(self, around: Around) -> None:
        """Adds the wrappers, and `around` outside of all."""
        low = self.type if self.type and self.type != mx.float32 else None
        for module in self.model.modules():
            if self._is_norm(module):
                hook(module, in_fp32)
            elif low and any(is_floating(value) for _, value in tree_flatten(module.parameters())):
                hook(module, casts_inputs(low))
        if self._outputs:
            hook(self.model, casts_outputs(self._outputs))
        hook(self.model, around)

    def end(self, values: Arrays) -> None:
        """Restores the model, with these values."""
        self.model.update(nested({path: values[path].astype(dtype) for path, dtype in self._original.items()}))
        for module in self.model.modules():
            unhook(module)
