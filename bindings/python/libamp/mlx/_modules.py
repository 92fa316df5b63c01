# SPDX-License-Identifier: Apache-2.0
"""What happens around the calls of modules: MLX has no hooks, so a module that needs one gets a class of its own,
derived from its class and of the same name."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from ._ops import TYPES, cast

Forward = Callable[..., Any]
Around = Callable[..., Any]  # (forward, *args, **kwargs): the call of a module, in place of its own

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

    names = {"__call__": call, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return _made.setdefault(cls, type(cls.__name__, (cls,), {**names, "_libamp_class": cls}))


def _around(around: Around, forward: Forward) -> Forward:
    return lambda *args, **kwargs: around(forward, *args, **kwargs)


def hook(module: nn.Module, around: Around) -> None:
    """The last one given is the outermost."""
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
    """What the module is given has the type that its parameters have, or MLX would compute in the wider one."""

    def around(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        return forward(*cast_all(args, dtype), **cast_all(kwargs, dtype))

    return around


def casts_outputs(dtype: mx.Dtype) -> Around:
    def around(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        return cast_all(forward(*args, **kwargs), dtype)

    return around


def in_fp32(forward: Forward, x: mx.array) -> mx.array:
    """A batch norm: statistics in FP32, the result in the type that came."""
    return forward(cast(x, mx.float32)).astype(x.dtype)


def is_floating(value: Any) -> bool:
    return isinstance(value, mx.array) and value.dtype in _FLOATING


def own_parameters(module: nn.Module) -> Iterator[str]:
    """Names of the floating arrays that lie in the module itself."""
    for name, value in module.items():
        if is_floating(value) and nn.Module.valid_parameter_filter(module, name, value):
            yield name
