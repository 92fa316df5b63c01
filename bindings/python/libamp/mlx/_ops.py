# SPDX-License-Identifier: Apache-2.0
"""Functions of MLX that cast their arguments by the library's rulings while a policy holds.

MLX has no dispatcher, but its layers and scripts find functions by name at each call (`mx.addmm`, `x @ y`). So
functions and methods of mx.array are replaced where they are found, and restored by `restore`. They are those in the
library's cast lists. MLX itself promotes the types of promote functions.
"""
from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable, Iterator
from types import CellType
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

from .. import ArgumentError, _core

LOWER, FP32, PROMOTE, BANNED, LEAVE = 1, 2, 3, 5, 6

TYPES: dict[str, mx.Dtype] = {
    "float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16, "float64": mx.float64,
}
_NAMES = {dtype: name for name, dtype in TYPES.items()}

# Functions with another name in the lists, or none: then a listed op with a similar computation. A mean is a sum in
# the type of its argument, and overflows as a sum does.
_ALIASES = {
    "arccos": "acos", "arcsin": "asin", "power": "pow", "mean": "sum", "cumulative_prod": "cumprod",
    "cumulative_sum": "cumsum", "logcumsumexp": "cumsum", "logsumexp": "log_softmax", "logaddexp": "softplus",
    "log1p": "log", "vecdot": "linalg_vecdot", "matrix_norm": "linalg_matrix_norm", "conv_general": "convolution",
    "convolve": "conv1d", "block_masked_mm": "matmul", "gather_mm": "matmul", "segmented_mm": "matmul",
    "linalg_tri_inv": "linalg_inv", "linalg_cholesky_inv": "cholesky_inverse",
}
# Functions of mlx.nn are many ops in one, compiled at their first call: they are decided on as a whole, and run
# without casts inside. LEAVE: as they come.
_ACTIVATIONS = {
    "elu": "exp", "celu": "exp", "selu": "exp", "gelu": "gelu", "gelu_approx": "gelu", "gelu_fast_approx": "gelu",
    "log_sigmoid": "softplus", "log_softmax": "log_softmax", "mish": "softplus", "prelu": "prelu", "relu2": "pow",
    "softmax": "softmax", "softmin": "softmin", "softplus": "softplus",
}
_LOSSES = {
    "cosine_similarity_loss": "cosine_similarity", "gaussian_nll_loss": "nll_loss",
    "hinge_loss": "hinge_embedding_loss", "kl_div_loss": "kl_div", "log_cosh_loss": "smooth_l1_loss",
    "triplet_loss": "triplet_margin_loss",
}

# None outside of models and gradient functions, False where casts are disabled.
_policy: contextvars.ContextVar[Policy | Literal[False] | None] = contextvars.ContextVar("libamp.mlx", default=None)


class Policy:
    """Cached rulings of a level, which depend only on op and types."""

    def __init__(self, level: str, settings: dict[str, Any]) -> None:
        self._core = _core.Policy(level, settings)
        self._known: dict[tuple[str, int, frozenset[mx.Dtype]], mx.Dtype | None] = {}

    def target(self, op: str, op_class: int, values: tuple[Any, ...]) -> mx.Dtype | None:
        types = frozenset(value.dtype for value in values if isinstance(value, mx.array) and value.dtype in _NAMES)
        key = (op, op_class, types)
        if key not in self._known:
            names = tuple(sorted(_NAMES[dtype] for dtype in types))
            self._known[key] = TYPES.get(self._core.target(op, names, op_class) or "")
        return self._known[key]


@contextlib.contextmanager
def policy_holds(policy: Policy | Literal[False] | None) -> Iterator[None]:
    """Opens a block in which a policy holds on this thread, except in inner blocks with disabled casts."""
    token = _policy.set(False if _policy.get() is False else policy)
    try:
        yield
    finally:
        _policy.reset(token)


def cast(value: Any, dtype: mx.Dtype) -> Any:
    """Returns a floating array in that type, anything else unchanged."""
    return value.astype(dtype) if isinstance(value, mx.array) and value.dtype in _NAMES else value


def asks(original: Callable[..., Any], op: str | Callable[..., str], op_class: int = 0, whole: bool = False) -> Any:
    """Returns `original` with its arguments cast by the policy. op: its name in the lists, or a function that returns
    it for a call."""

    @functools.wraps(original)
    def asking(*args: Any, **kwargs: Any) -> Any:
        policy = _policy.get()
        if not policy:
            return original(*args, **kwargs)
        name = op if isinstance(op, str) else op(*args, **kwargs)
        target = policy.target(name, op_class, (*args, *kwargs.values()))
        if target is not None:
            args = tuple(cast(value, target) for value in args)
            kwargs = {key: cast(value, target) for key, value in kwargs.items()}
        if not whole:
            return original(*args, **kwargs)
        with policy_holds(False):
            return original(*args, **kwargs)

    return asking


def _cross_entropy_of(_x: Any, _y: Any, _weights: Any = None, with_logits: bool = True, *_: Any, **__: Any) -> str:
    return "binary_cross_entropy_with_logits" if with_logits else "binary_cross_entropy"


def _listed() -> set[str]:
    """Returns the names that a list casts."""
    decided = (LOWER, FP32, BANNED)
    return {name for name, _, fp16, bf16 in _core.list_ops(0) if fp16 in decided or bf16 in decided}


def _members(owner: Any, prefix: str, listed: set[str]) -> Iterator[tuple[Any, str, Any]]:
    for name in dir(owner):
        original, op = getattr(owner, name), _ALIASES.get(prefix + name, prefix + name)
        if op in listed and callable(original) and not isinstance(original, type):
            yield owner, name, asks(original, op)


def _own(module: Any) -> list[str]:
    return [
        name for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, type)
        and getattr(value, "__module__", "") == module.__name__
    ]


def _functions() -> Iterator[tuple[Any, str, Any]]:
    """Yields (owner, name, replacement)."""
    listed = _listed()
    for owner, prefix in ((mx, ""), (mx.array, ""), (mx.fast, ""), (mx.linalg, "linalg_"), (mx.fft, "fft_")):
        yield from _members(owner, prefix, listed)
    for name in _own(nn.layers.activations):
        op_class = 0 if name in _ACTIVATIONS else LEAVE
        original = getattr(nn.layers.activations, name)
        yield nn.layers.activations, name, asks(original, _ACTIVATIONS.get(name, name), op_class, whole=True)
    for name in _own(nn.losses):
        op = _cross_entropy_of if name == "binary_cross_entropy" else _LOSSES.get(name, name)
        yield nn.losses, name, asks(getattr(nn.losses, name), op, whole=True)


def _holders() -> Iterator[dict[str, Any]]:
    """Yields modules that may have imported functions, as by `from mlx.core import matmul`."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            yield names


def _cells() -> Iterator[CellType]:
    """Yields the cells in which nn.Softmax and others have their function."""
    for value in vars(nn.layers.activations).values():
        if isinstance(value, type) and issubclass(value, nn.Module):
            yield from getattr(value.__call__, "__closure__", None) or ()


_undo: list[Callable[[], None]] = []


def _replace(holder: Any, name: str, value: Any) -> None:
    original = getattr(holder, name)
    _undo.append(lambda: setattr(holder, name, original))
    setattr(holder, name, value)


def patch() -> None:
    """Patches the functions, once."""
    if _undo:
        return
    found: dict[int, Any] = {}
    for owner, name, value in list(_functions()):
        original = getattr(owner, name)
        if hasattr(original, "_libamp"):
            continue  # a registration overrides the list
        if owner is mx.array:
            _replace(owner, name, value)
        else:
            found.setdefault(id(original), (original, value))
    for names in _holders():
        for name, value in list(names.items()):
            if id(value) in found:
                _undo.append(functools.partial(names.__setitem__, name, value))
                names[name] = found[id(value)][1]
    for cell in _cells():
        if id(cell.cell_contents) in found:
            _replace(cell, "cell_contents", found[id(cell.cell_contents)][1])


def restore() -> None:
    while _undo:
        _undo.pop()()


def register(module: Any, name: str, op_class: int) -> None:
    """Sets the class of a function, over the lists, until `unregister`."""
    if not callable(getattr(module, name, None)):
        raise ArgumentError(f"{module!r} has no function {name!r} to register")
    if _undo:
        raise ArgumentError(f"register {name} before amp.initialize: functions are replaced already")
    original = getattr(module, name)
    asking = asks(original, name, op_class, whole=True)
    asking._libamp = True
    setattr(module, name, asking)
    _registered.append(lambda: setattr(module, name, original))


_registered: list[Callable[[], None]] = []


def unregister() -> None:
    while _registered:
        _registered.pop()()
