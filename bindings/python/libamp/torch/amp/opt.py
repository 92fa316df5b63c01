# SPDX-License-Identifier: Apache-2.0
"""Apex's oldest optimizer wrapper: scale_loss is its method, with a dynamic scale for each loss of a step."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ... import _core
from . import storage
from ._casting import disable_casts, scaled


class OptimWrapper:
    """amp.init().wrap_optimizer(optimizer, num_loss)."""

    def __init__(self, optimizer: Any, amp_handle: Any, num_loss: int) -> None:
        self._optimizer, self._handle, self._num_loss = optimizer, amp_handle, num_loss
        self._loss_idx = 0
        self._context: Any = None
        if amp_handle.is_active():
            params = {id(param): param for group in optimizer.param_groups for param in group["params"]}
            settings = {"loss_scale": -1.0, "num_losses": num_loss, "cast_model_type": "unchanged"}
            self._context = _core.Context("O0", [], [list(params.values())], settings, None, [], storage)

    @contextlib.contextmanager
    def scale_loss(self, loss: Any) -> Iterator[Any]:
        """The next loss of this step, scaled."""
        if self._context is None:
            yield loss
            return
        if self._loss_idx >= self._num_loss:
            raise RuntimeError(f"wrap_optimizer was told of {self._num_loss} losses a step (num_loss)")
        bracket = self._context.begin([0], self._loss_idx, False, False)
        self._loss_idx += 1
        try:
            yield scaled(loss, bracket.scale)
        except BaseException:
            bracket.cancel()
            raise
        bracket.end()
        self._handle._clear_cache()

    def step(self, closure: Any = None) -> Any:
        """Steps, unless a gradient of one of the losses was not finite."""
        if closure is not None:
            raise NotImplementedError("OptimWrapper.step takes no closure: its losses are scaled one by one")
        if self._context is None:
            return self._optimizer.step()
        self._loss_idx = 0
        skip = self._context.step_begin(0)
        try:
            if skip:
                print("Gradient overflow: this step is skipped")
                return None
            with disable_casts():
                return self._optimizer.step()
        finally:
            self._context.step_end(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def __repr__(self) -> str:
        return repr(self._optimizer)
