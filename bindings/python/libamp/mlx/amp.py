# SPDX-License-Identifier: Apache-2.0
"""Apex's amp for MLX.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    step = amp.value_and_grad(model, loss_fn)           # instead of nn.value_and_grad
    loss, grads = step(model, x, y)                     # FP32 and unscaled
    optimizer.update(model, grads)                      # steps, or skips after an overflow, without waiting

Nothing is evaluated before mx.eval. docs/start/mlx.md has more.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .. import ArgumentError
from . import _ops
from ._session import Session, live, session_of

__all__ = [
    "check", "disable_casts", "float_function", "half_function", "initialize", "load_state_dict", "master_params",
    "promote_function", "register_float_function", "register_half_function", "register_promote_function", "shutdown",
    "state_dict", "value_and_grad",
]

_RENAMED = {"min_loss_scale": "min_scale", "max_loss_scale": "max_scale"}


def _setting(name: str, value: Any) -> Any:
    if name == "loss_scale":
        if value == "dynamic":
            return -1.0
        if float(value) <= 0:
            raise ArgumentError(f'loss_scale is "dynamic" or a number above 0, not {value!r}')
        return float(value)
    return str(value).split(".")[-1] if isinstance(value, mx.Dtype) else value


def initialize(
    model: nn.Module, optimizer: Any = None, opt_level: str = "O1", *, enabled: bool = True, **settings: Any
) -> Any:
    """Prepares model and optimizer, in place, for a level. Returns (model, optimizer), or the model without an
    optimizer.

    model: mlx.nn.Module. optimizer: one of mlx.optimizers, or a list of those that share the model's parameters.
    opt_level: "O0" to "O5". enabled: False changes nothing. settings: Apex's cast_model_type, keep_batchnorm_fp32,
    master_weights, loss_scale ("dynamic" or a number), num_losses, cast_model_outputs, min_loss_scale, max_loss_scale,
    and scaler, init_scale, window, growth, backoff, hysteresis, max_skips, lists as in amp_config.

    Raises libamp.ArgumentError for wrong arguments or a model that is already initialized.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"amp.initialize wants a model of mlx.nn, not {type(model).__name__}")
    if "_libamp_session" in model.__dict__:
        raise ArgumentError("this model was given to amp.initialize already: amp.shutdown() ends that")
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    given = {_RENAMED.get(name, name): _setting(name, value) for name, value in settings.items() if value is not None}
    Session(model, optimizers, opt_level, {**given, "enabled": enabled})
    return model if optimizer is None else (model, optimizer)


def value_and_grad(model: nn.Module, fn: Callable[..., Any], loss_id: int = 0) -> Callable[..., Any]:
    """Returns a function like that of nn.value_and_grad: it returns the result of fn, and the gradients of the (first)
    value with respect to the model's trainable parameters.

    fn runs with the level's casts. Its loss is scaled. The gradients are unscaled, and FP32 where parameters or masters
    are FP32. If a gradient is not finite, all gradients are NaN, the scale backs off, and the update with them changes
    nothing. loss_id: index of the loss scaler, below num_losses. Raises libamp.ArgumentError for a model that is not
    initialized, has no optimizer, or for a wrong loss_id.
    """
    return session_of(model, "amp.value_and_grad").value_and_grad(fn, loss_id)


def master_params(model: nn.Module) -> Any:
    """Returns the parameters as a tree in FP32, from the masters where there are some. Use it for files:
    model.load_weights takes the tree at any level."""
    return session_of(model, "amp.master_params").fp32_parameters()


def check(model: nn.Module) -> None:
    """Raises libamp.Error if training is stuck: max_skips skips in a row, or a parameter that is not finite. It
    evaluates arrays. Call it now and then."""
    session_of(model, "amp.check").check()


def _only(model: nn.Module | None, function: str) -> Session:
    if model is not None:
        return session_of(model, function)
    if len(live()) != 1:
        raise ArgumentError(f"{function}: {len(live())} models were given to amp.initialize: name one")
    return live()[0]


def state_dict(model: nn.Module | None = None) -> dict[str, dict[str, float]]:
    """Returns the scalers in Apex's form, as libamp.torch does: {"loss_scaler0": {"loss_scale": 65536.0, "unskipped":
    0}}. It evaluates arrays. A checkpoint of MLX needs only model.parameters() and optimizer.state, which contain the
    scalers."""
    session = _only(model, "amp.state_dict")
    if session.scaler.idle:
        return {f"loss_scaler{i}": {"loss_scale": 1.0, "unskipped": 0} for i in range(session.settings["num_losses"])}
    states = [session.scaler_state(i) for i in range(session.settings["num_losses"])]
    return {
        f"loss_scaler{i}": {"loss_scale": float(state["scale"].item()), "unskipped": int(state["unskipped"].item())}
        for i, state in enumerate(states)
    }


def load_state_dict(state_dict: dict[str, dict[str, float]], model: nn.Module | None = None) -> None:
    """Loads a result of state_dict, of this module or of libamp.torch. Raises libamp.ArgumentError for other keys."""
    session = _only(model, "amp.load_state_dict")
    wanted = {f"loss_scaler{i}" for i in range(session.settings["num_losses"])}
    if set(state_dict) != wanted:
        raise ArgumentError(f"amp.load_state_dict wants {sorted(wanted)}, and got {sorted(state_dict)}")
    if session.scaler.idle:
        return
    for i in range(len(wanted)):
        loaded, state = state_dict[f"loss_scaler{i}"], session.scaler_state(i)
        state["scale"] = mx.array(loaded["loss_scale"], mx.float32)
        state["unskipped"] = mx.array(loaded["unskipped"], mx.uint32)


def shutdown(model: nn.Module | None = None) -> None:
    """Undoes initialize for this model, or for all: parameters get their types again with the trained values, and MLX
    gets its functions."""
    for session in live() if model is None else [session_of(model, "amp.shutdown")]:
        session.end()
    if not live():
        _ops.unregister()


def disable_casts() -> contextlib.AbstractContextManager[None]:
    """Opens a block in which functions run without casts."""
    return _ops.policy_holds(False)


def half_function(fn: Callable[..., Any]) -> Any:
    """Decorates fn: floating arguments are cast to the level's 16-bit type. Nothing is cast inside."""
    return _ops.asks(fn, fn.__name__, _ops.LOWER, whole=True)


def float_function(fn: Callable[..., Any]) -> Any:
    """Decorates fn: floating arguments are cast to FP32. Nothing is cast inside."""
    return _ops.asks(fn, fn.__name__, _ops.FP32, whole=True)


def promote_function(fn: Callable[..., Any]) -> Any:
    """Decorates fn: floating arguments are cast to the widest type among them. Nothing is cast inside."""
    return _ops.asks(fn, fn.__name__, _ops.PROMOTE, whole=True)


def register_half_function(module: Any, name: str) -> None:
    """Applies half_function to `module.name`, before initialize. It overrides the cast lists."""
    _ops.register(module, name, _ops.LOWER)


def register_float_function(module: Any, name: str) -> None:
    """Applies float_function to `module.name`, before initialize. It overrides the cast lists."""
    _ops.register(module, name, _ops.FP32)


def register_promote_function(module: Any, name: str) -> None:
    """Applies promote_function to `module.name`, before initialize. It overrides the cast lists."""
    _ops.register(module, name, _ops.PROMOTE)
