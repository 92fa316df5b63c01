# SPDX-License-Identifier: Apache-2.0
"""An optimizer's update: on FP32 masters, and skipped if the gradients say so. Both cases make the same arrays, because
the decision is an array that is not evaluated."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from . import _scaler

KEY = "libamp"  # key of masters and scalers in optimizer.state, with which they are saved, loaded and compiled


def _copied(tree: Any) -> Any:
    return tree_map(lambda value: value, tree)


def _choose(step: mx.array, state: Any, before: Any) -> None:
    """Updates state in place: each array remains new if `step`, else becomes the old one."""
    for key in list(state) if isinstance(state, dict) else range(len(state)):
        if isinstance(state, dict) and key not in before:
            continue  # made by this update, so it counts as none
        if isinstance(state[key], mx.array):
            state[key] = mx.where(step, state[key], before[key])
        elif isinstance(state[key], (dict, list)) and key != KEY:
            _choose(step, state[key], before[key])


def follow(master: mx.array, param: mx.array) -> mx.array:
    """Returns the master, or the written value where the parameter differs from the rounded master."""
    return mx.where(master.astype(param.dtype) == param, master, param.astype(mx.float32))


def _updated(optimizer: Any, apply: Callable[..., Any], step: mx.array | None, grads: Any, params: Any) -> Any:
    """Returns the optimizer's results. Its state changes only if it steps."""
    if not optimizer._initialized:
        optimizer.init(grads)
    before = _copied(optimizer.state) if step is not None else None
    updated = apply(grads, params)
    if step is None:
        return updated
    _choose(step, optimizer.state, before)
    return tree_map(lambda new, old: mx.where(step, new, old), updated, params)


class Updates:
    """Replaces apply_gradients and init of an optimizer."""

    def __init__(self, session: Any, optimizer: Any) -> None:
        self.session, self.optimizer = session, optimizer
        self._apply, self._init = optimizer.apply_gradients, optimizer.init
        optimizer.apply_gradients, optimizer.init = self.apply_gradients, self.init

    def remove(self) -> None:
        for name in ("apply_gradients", "init"):
            self.optimizer.__dict__.pop(name, None)
        self.optimizer.state.pop(KEY, None)

    def init(self, parameters: Any) -> None:
        """Initializes states. Those of parameters with masters are FP32."""
        self._init(self.session.widened(parameters))

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        self.session.check_update(parameters)
        grads = self.session.widened(gradients)
        params = tree_map(lambda _, param: param, grads, parameters)  # those that have gradients
        flat = [grad for _, grad in tree_flatten(grads)]
        step = _scaler.is_step(flat) if flat and not self.session.scaler.idle else None
        masters = self.session.masters(params)
        wide = tree_map_with_path(
            lambda path, param: follow(masters[path], param) if path in masters else param, params
        )
        updated = _updated(self.optimizer, self._apply, step, grads, wide)
        self.session.set_masters({path: value for path, value in tree_flatten(updated) if path in masters})
        return tree_map(lambda value, param: value.astype(param.dtype), updated, params)
