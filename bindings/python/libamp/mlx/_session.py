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
from . import _modules, _ops, _scaler
from ._optimizer import KEY, Arrays, Updates, follow, nested

_live: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    def __init__(self, model: nn.Module, optimizers: list[Any], level: str, settings: dict[str, Any]) -> None:
        self.model, self.level, self.settings = model, level, _core.resolve(level, settings)
        self.optimizers = [inner for outer in optimizers for inner in getattr(outer, "optimizers", [outer])]
        self.scaler = _scaler.Scaler(self.settings)
        self.policy = _ops.Policy(level, settings) if self.settings["patch_ops"] else None
        self.model_type = _ops.TYPES.get(self.settings["cast_model_type"] or "")
        self.alive, self.counted = True, False
        self.names: list[str] = []  # of gradients, in the order of Scaler.update's numbers
        self._check()
        before = self._parameters()
        self.types = self._types_wanted()
        self.original = {path: before[path].dtype for path in self.types}
        self._retype(before)
        self._hook()
        self.updates = [Updates(self, optimizer) for optimizer in self.optimizers]
        if self.optimizers and not (self.scaler.idle and not self._has_masters):
            self._begin(before)
        if self.policy:
            _ops.patch()
        object.__setattr__(model, "_libamp_session", self)
        _live.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        return self  # a copy of the model is not trained by this session

    # ---- what initialize refuses ----

    def _check(self) -> None:
        for inner in self.optimizers:
            if not isinstance(inner, optim.Optimizer):
                raise ArgumentError(f"amp.initialize wants optimizers of mlx.optimizers, not {type(inner).__name__}")
            if "apply_gradients" in inner.__dict__:
                raise ArgumentError(
                    f"this {type(inner).__name__} was given to amp.initialize already: amp.shutdown() ends that"
                )
        floating = {path: value for path, value in self._trainable().items() if _modules.is_floating(value)}
        if not floating:
            raise ArgumentError(
                f"amp.initialize: {type(self.model).__name__} has no trainable floating parameter"
                " (is it frozen, or are its layers not attributes of it?)"
            )
        for path, value in floating.items():
            if self.model_type is None and value.dtype != mx.float32:
                raise ArgumentError(
                    f"{path} is {value.dtype}, and {self.level} trains FP32 parameters: call"
                    " model.set_dtype(mx.float32) before amp.initialize, or take O2 or O5"
                )

    # ---- the model ----

    def _parameters(self) -> Arrays:
        return dict(tree_flatten(self.model.parameters()))

    def _trainable(self) -> Arrays:
        return dict(tree_flatten(self.model.trainable_parameters()))

    def _is_norm(self, module: nn.Module) -> bool:
        return isinstance(module, nn.BatchNorm) and (bool(self.policy) or self.settings["keep_batchnorm_fp32"])

    def _types_wanted(self) -> dict[str, mx.Dtype]:
        """Of the parameters that the level has a type for. What is frozen and not FP32 is somebody's choice."""
        if self.model_type is None:
            return {}
        types = {}
        for place, module in self.model.named_modules():
            wanted = mx.float32 if self._is_norm(module) else self.model_type
            for name in _modules.own_parameters(module):
                if module[name].dtype == mx.float32 or name not in module._no_grad:
                    types[f"{place}.{name}" if place else name] = wanted
        return types

    def _retype(self, values: Arrays) -> None:
        self.model.update(nested({path: values[path].astype(self.types[path]) for path in self._strange(values)}))

    def _strange(self, values: Arrays) -> list[str]:
        return [path for path, dtype in self.types.items() if values[path].dtype != dtype]

    def _hook(self) -> None:
        low = self.model_type if self.model_type and self.model_type != mx.float32 else None
        for module in self.model.modules():
            if self._is_norm(module):
                _modules.hook(module, _modules.in_fp32)
            elif low and any(True for _ in _modules.own_parameters(module)):
                _modules.hook(module, _modules.casts_inputs(low))
        if low:
            _modules.hook(self.model, _modules.casts_inputs(low))
        outputs = _ops.TYPES.get(self.settings["cast_model_outputs"] or "")
        if outputs:
            _modules.hook(self.model, _modules.casts_outputs(outputs))
        _modules.hook(self.model, self._forward)

    def _forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.settle()
        if self.policy is None:
            return forward(*args, **kwargs)
        with _ops.policy_holds(self.policy):
            return forward(*args, **kwargs)

    def settle(self) -> None:
        """Weights that were loaded since in another type: their values are the masters', and they get theirs again."""
        values = self._parameters() if self.types else {}
        loaded = self._strange(values)
        if loaded:
            self.set_masters({path: values[path].astype(mx.float32) for path in loaded if path in self._masters()})
            self._retype(values)

    # ---- masters and scalers, in the first optimizer's state ----

    @property
    def _has_masters(self) -> bool:
        return bool(self.settings["master_weights"]) and any(dtype != mx.float32 for dtype in self.types.values())

    def _begin(self, values: Arrays) -> None:
        state: dict[str, Any] = {}
        if not self.scaler.idle:
            state["scalers"] = [self.scaler.state() for _ in range(self.settings["num_losses"])]
        if self._has_masters:
            low = filter(self._is_low, self._trainable())
            state["masters"] = nested({path: values[path].astype(mx.float32) for path in low})
        self.optimizers[0].state[KEY] = state

    def _state(self) -> dict[str, Any]:
        """Also where a script gave the optimizer a state that knows of none: then training begins here."""
        if KEY not in self.optimizers[0].state:
            self._begin(self._parameters())
        state: dict[str, Any] = self.optimizers[0].state[KEY]
        return state

    def scaler_state(self, loss_id: int) -> _scaler.State:
        scalers: list[_scaler.State] = self._state()["scalers"]
        return scalers[loss_id]

    def _is_low(self, path: str) -> bool:
        return self.types.get(path, mx.float32) != mx.float32

    def _masters(self) -> Arrays:
        return dict(tree_flatten(self._state().get("masters", {}))) if self._has_masters else {}

    def masters(self, params: Any) -> Arrays:
        """Of these; of what was frozen until now, new ones."""
        if not self._has_masters:
            return {}
        known = self._masters()
        low = [(path, param) for path, param in tree_flatten(params) if self._is_low(path)]
        return {path: known[path] if path in known else param.astype(mx.float32) for path, param in low}

    def set_masters(self, masters: Arrays) -> None:
        if masters:
            self._state()["masters"] = nested({**self._masters(), **masters})

    def widened(self, tree: Any) -> Any:
        """What belongs to parameters with masters in FP32."""
        if not self._has_masters:
            return tree
        return tree_map_with_path(
            lambda path, value: value.astype(mx.float32) if self._is_low(path) else value, tree
        )

    def fp32_parameters(self) -> Any:
        masters = self._masters() if self.optimizers else {}
        return tree_map_with_path(
            lambda path, param: follow(masters[path], param) if path in masters else param, self.model.parameters()
        )

    # ---- a bracket ----

    def value_and_grad(self, fn: Callable[..., Any], loss_id: int) -> Callable[..., Any]:
        if not self.optimizers:
            raise ArgumentError("amp.value_and_grad: this model was given to amp.initialize without an optimizer")
        if not 0 <= loss_id < self.settings["num_losses"]:
            told = self.settings["num_losses"]
            raise ArgumentError(f"loss_id is {loss_id}, and amp.initialize was told of {told} losses: num_losses=...")
        bracket = self._plain(fn) if self.scaler.idle else self._scaled(fn, loss_id)

        @functools.wraps(fn)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            if not self.alive:
                raise Error("this function is of an amp.initialize that amp.shutdown has ended")
            self.settle()
            self.counted = True
            # around backward too: what mx.checkpoint left out is computed there
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
        keeps = bool(self.settings["master_weights"]) or self.model_type is None
        return tree_map_with_path(
            lambda path, grad: values[path] if keeps else values[path].astype(grad.dtype), grads
        )

    def check_update(self, parameters: Any) -> None:
        if isinstance(parameters, nn.Module) and parameters is not self.model:
            raise ArgumentError(
                f"this optimizer was given to amp.initialize with another model than this {type(parameters).__name__}"
            )
        if not self.counted and not self.scaler.idle:
            raise Error(
                "the optimizer got gradients before any amp.value_and_grad of its model was called: they carried no"
                " scale. Use amp.value_and_grad(model, fn) in the place of nn.value_and_grad"
            )

    # ---- what is asked for, and evaluated ----

    def check(self) -> None:
        for loss_id, state in enumerate(self._state()["scalers"] if not self.scaler.idle else []):
            skips, most = state["skips_in_row"].item(), self.settings["max_skips"]
            if skips >= most:
                raise Error(
                    f"loss {loss_id}: {skips} steps in a row were skipped, and the scale is {state['scale'].item():g}:"
                    f" the gradient of {self._name(state)} is not finite at any scale"
                )
        for path, value in self._parameters().items():
            if _modules.is_floating(value) and not mx.isfinite(value).all().item():
                why = " at the static scale of 1, at which no step is skipped" if self.scaler.idle else ""
                raise Error(
                    f"{path} holds a number that is not finite: a gradient or a weight that was loaded was none{why}."
                    ' loss_scale="dynamic" skips such steps'
                )

    def _name(self, state: _scaler.State) -> str:
        number = int(state["first_nonfinite"].item())
        return self.names[number] if 0 <= number < len(self.names) else f"number {number}"

    def end(self) -> None:
        """Everything as it was, with what was trained."""
        self.model.update(nested({
            path: value.astype(self.original[path])
            for path, value in tree_flatten(self.fp32_parameters()) if path in self.original
        }))
        for module in self.model.modules():
            _modules.unhook(module)
        self.model.__dict__.pop("_libamp_session", None)
        for update in self.updates:
            update.remove()
        self.alive = False
        _live.discard(self)
        if not any(session.policy for session in _live):
            _ops.restore()


def session_of(model: Any, function: str) -> Session:
    session = getattr(model, "__dict__", {}).get("_libamp_session")
    if session is None or session.model is not model:
        what = "a copy of a model" if session else f"a {type(model).__name__}"
        raise ArgumentError(f"{function}: {what} that was not given to amp.initialize")
    found: Session = session
    return found


def live() -> list[Session]:
    return list(_live)
