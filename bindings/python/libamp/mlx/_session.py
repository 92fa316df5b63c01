# SPDX-License-Identifier: Apache-2.0
"""A model, its optimizers and a level, from initialize to shutdown."""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map_with_path

from .. import ArgumentError, Error, _core
from .._words import counted
from . import _ops, _scaler
from ._modules import Arrays, TypedModel, is_floating, nested
from ._optimizer import KEY, Updates, follow

_live: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    def __init__(self, model: nn.Module, optimizers: list[Any], level: str, settings: dict[str, Any]) -> None:
        self.model, self.settings = model, _core.resolve(level, settings)
        self.optimizers = [inner for outer in optimizers for inner in getattr(outer, "optimizers", [outer])]
        self.scaler = _scaler.Scaler(self.settings)
        self.policy = _ops.Policy(level, settings) if self.settings["patch_ops"] else None
        self.typed = TypedModel(model, self.settings, bool(self.policy))
        self.alive, self.counted = True, False
        self.names: list[str] = []  # names of gradients, by the index in Scaler.update
        self._check(level)
        before = self.typed.parameters()
        self.typed.retype(before)
        self.typed.hook(self._forward)
        self.updates = [Updates(self, optimizer) for optimizer in self.optimizers]
        if self.optimizers and (self._has_masters or not self.scaler.idle):
            self._begin(before)
        if self.policy:
            _ops.patch()
        object.__setattr__(model, "_libamp_session", self)
        _live.add(self)

    def _check(self, level: str) -> None:
        for inner in self.optimizers:
            if not isinstance(inner, optim.Optimizer):
                raise ArgumentError(f"amp.initialize wants optimizers of mlx.optimizers, not {type(inner).__name__}")
            if "apply_gradients" in inner.__dict__:
                raise ArgumentError(
                    f"this {type(inner).__name__} was given to amp.initialize already: amp.shutdown() ends that"
                )
        trained = self.typed.trainable()
        if not trained:
            raise ArgumentError(
                f"amp.initialize: {type(self.model).__name__} has no trainable floating parameter"
                " (is it frozen, or are its layers not attributes of it?)"
            )
        for path, value in trained.items():
            if self.policy and value.dtype != mx.float32:
                raise ArgumentError(
                    f"{path} is {value.dtype}, and {level} trains FP32 parameters: call model.set_dtype(mx.float32)"
                    " before amp.initialize, or take O2 or O5"
                )

    # ---- calls of the model ----

    def _forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.settle()
        with _ops.policy_holds(self.policy):
            return forward(*args, **kwargs)

    def settle(self) -> None:
        """Handles weights loaded in another type: their values become the masters', and they are cast again."""
        values = self.typed.parameters() if self.typed.types else {}
        loaded = self.typed.strange(values)
        if loaded:
            masters = self._masters()
            self.set_masters({path: values[path].astype(mx.float32) for path in loaded if path in masters})
            self.typed.retype(values)

    # ---- masters and scalers, in the first optimizer's state ----

    @property
    def _has_masters(self) -> bool:
        low = any(dtype != mx.float32 for dtype in self.typed.types.values())
        return bool(self.optimizers) and bool(self.settings["master_weights"]) and low

    def _begin(self, values: Arrays) -> None:
        state: dict[str, Any] = {}
        if not self.scaler.idle:
            state["scalers"] = [self.scaler.state() for _ in range(self.settings["num_losses"])]
        if self._has_masters:
            low = filter(self.typed.is_low, self.typed.trainable())
            state["masters"] = nested({path: values[path].astype(mx.float32) for path in low})
        self.optimizers[0].state[KEY] = state

    def _state(self) -> dict[str, Any]:
        """Returns the state in the optimizer. If a script gave it a state without one, training begins here."""
        if KEY not in self.optimizers[0].state:
            self._begin(self.typed.parameters())
        state: dict[str, Any] = self.optimizers[0].state[KEY]
        return state

    def scaler_state(self, loss_id: int) -> _scaler.State:
        scalers: list[_scaler.State] = self._state()["scalers"]
        return scalers[loss_id]

    def _masters(self) -> Arrays:
        return dict(tree_flatten(self._state().get("masters", {}))) if self._has_masters else {}

    def masters(self, params: Any) -> Arrays:
        """Returns the masters of these parameters, new ones for those that were frozen until now."""
        if not self._has_masters:
            return {}
        known = self._masters()
        low = [(path, param) for path, param in tree_flatten(params) if self.typed.is_low(path)]
        return {path: known[path] if path in known else param.astype(mx.float32) for path, param in low}

    def set_masters(self, masters: Arrays) -> None:
        if masters:
            self._state()["masters"] = nested({**self._masters(), **masters})

    def widened(self, tree: Any) -> Any:
        """Returns the tree with values of parameters with masters in FP32."""
        if not self._has_masters:
            return tree
        return tree_map_with_path(
            lambda path, value: value.astype(mx.float32) if self.typed.is_low(path) else value, tree
        )

    def fp32_parameters(self) -> Any:
        masters = self._masters()
        return tree_map_with_path(
            lambda path, param: follow(masters[path], param) if path in masters else _ops.cast(param, mx.float32),
            self.model.parameters(),
        )

    # ---- a bracket ----

    def value_and_grad(self, fn: Callable[..., Any], loss_id: int) -> Callable[..., Any]:
        if not self.optimizers:
            raise ArgumentError("amp.value_and_grad: this model was given to amp.initialize without an optimizer")
        if not 0 <= loss_id < self.settings["num_losses"]:
            told = self.settings["num_losses"]
            raise ArgumentError(f"loss_id is {loss_id}, and amp.initialize got {counted(told, 'loss')}: num_losses=...")
        bracket = self._plain(fn) if self.scaler.idle else self._scaled(fn, loss_id)

        @functools.wraps(fn)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            if not self.alive:
                raise Error("this function is of an amp.initialize that amp.shutdown has ended")
            self.settle()
            self.counted = True
            # around backward too, which recomputes for mx.checkpoint
            with _ops.policy_holds(self.policy):
                return bracket(*args, **kwargs)

        return differentiated

    def _plain(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        differentiate = nn.value_and_grad(self.model, fn)

        def bracket(*args: Any, **kwargs: Any) -> Any:
            value, grads = differentiate(*args, **kwargs)
            return value, self.widened(grads)

        return bracket

    def _scaled(self, fn: Callable[..., Any], loss_id: int) -> Callable[..., Any]:
        def scaled(*args: Any, **kwargs: Any) -> Any:
            value = fn(*args, **kwargs)
            loss = value[0] if isinstance(value, (tuple, list)) else value
            return loss.astype(mx.float32) * self.scaler_state(loss_id)["scale"], value

        differentiate = nn.value_and_grad(self.model, scaled)

        def bracket(*args: Any, **kwargs: Any) -> Any:
            (_, value), grads = differentiate(*args, **kwargs)
            with _ops.policy_holds(None):
                return value, self._unscaled(grads, loss_id)

        return bracket

    def _unscaled(self, grads: Any, loss_id: int) -> Any:
        flat = tree_flatten(grads)
        self.names = [path for path, _ in flat]
        state = self.scaler_state(loss_id)
        wide, finite, first = _scaler.unscale(state, [grad for _, grad in flat])
        self.scaler.update(state, finite, first)
        values = dict(zip(self.names, wide))
        return tree_map_with_path(
            lambda path, grad: values[path] if self._has_masters else values[path].astype(grad.dtype), grads
        )

    def check_update(self, parameters: Any) -> None:
        if isinstance(parameters, nn.Module) and parameters is not self.model:
            raise ArgumentError(
                f"this optimizer was given to amp.initialize with another model than this {type(parameters).__name__}"
            )
        if not self.counted and not self.scaler.idle:
            raise Error(
                "the optimizer got gradients before any amp.value_and_grad of its model was called: they had no scale. "
                "Use amp.value_and_grad(model, fn) instead of nn.value_and_grad"
            )

    # ---- queries that evaluate ----

    def check(self) -> None:
        for loss_id, state in enumerate(self._state()["scalers"] if self.optimizers and not self.scaler.idle else []):
            skips, most = state["skips_in_row"].item(), self.settings["max_skips"]
            if skips >= most:
                row = f"{counted(skips, 'step')} in a row {'was' if skips == 1 else 'were'} skipped"
                raise Error(
                    f"loss {loss_id}: {row}, and the scale is {state['scale'].item():g}:"
                    f" the gradient of {self._name(state)} is not finite at any scale"
                )
        for path, value in self.typed.parameters().items():
            if is_floating(value) and not mx.isfinite(value).all().item():
                why = " at the static scale of 1, at which no step is skipped" if self.scaler.idle else ""
                raise Error(
                    f"{path} holds a number that is not finite: a gradient or a weight that was loaded was none{why}."
                    ' loss_scale="dynamic" skips such steps'
                )

    def _name(self, state: _scaler.State) -> str:
        number = int(state["first_nonfinite"].item())
        return self.names[number] if 0 <= number < len(self.names) else f"number {number}"

    def end(self) -> None:
        """Restores everything, with the trained values."""
        self.typed.end(dict(tree_flatten(self.fp32_parameters())))
        self.model.__dict__.pop("_libamp_session", None)
        for update in self.updates:
            update.remove()
        self.alive = False
        _live.discard(self)
        if not any(session.policy for session in _live):
            _ops.restore()


def session_of(model: Any, function: str) -> Session:
    session: Session | None = getattr(model, "__dict__", {}).get("_libamp_session")
    if session is None:
        raise ArgumentError(f"{function}: a {type(model).__name__} that was not given to amp.initialize")
    return session


def live() -> list[Session]:
    return list(_live)
