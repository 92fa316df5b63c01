# SPDX-License-Identifier: Apache-2.0
"""Apex's API before amp.initialize: the handle of amp.init, and the optimizer wrapper."""
from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from ... import _core
from ..._words import counted
from . import storage
from ._casting import disable_casts, scaled
from .session import Session


def replace_function(owner: Any, name: str, function: Any) -> None:
    """Sets a function of a module, a class or a dict of functions."""
    if isinstance(owner, dict):
        owner[name] = function
    else:
        setattr(owner, name, function)


class OptimWrapper:
    """Wraps an optimizer: amp.init().wrap_optimizer(optimizer, num_loss). scale_loss is its method, with a dynamic
    scale for each loss of a step."""

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
        """Opens a block with the next loss of this step, scaled."""
        if self._context is None:
            yield loss
            return
        if self._loss_idx >= self._num_loss:
            raise RuntimeError(f"wrap_optimizer got {counted(self._num_loss, 'loss')} a step (num_loss)")
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
        """Steps, or skips if a gradient of one of the losses was not finite."""
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


class AmpHandle:
    """The handle of amp.init, also _amp_state.handle: the context that patches torch's functions. owns: the context
    ends with the handle instead of with models and optimizers."""

    def __init__(
        self, session: Session, enable_caching: bool = True, verbose: bool = False, owns: bool = False
    ) -> None:
        self._ref = weakref.ref(session)
        self._owned = session if owns else None
        self._enable_caching = enable_caching
        self._verbose = verbose
        self._active = True
        self._saved: list[tuple[Any, str, Any]] = []

    def is_active(self) -> bool:
        """Returns True if casts are made."""
        session = self._ref()
        return self._active and session is not None and session.alive and _core.current_scope() != (None,)

    @contextlib.contextmanager
    def _disable_casts(self) -> Iterator[None]:
        before, self._active = self._active, False
        try:
            with disable_casts():
                yield
        finally:
            self._active = before

    def scale_loss(self, loss: Any, optimizer: Any) -> Any:
        """Raises RuntimeError: Apex has removed it too."""
        raise RuntimeError(
            "handle.scale_loss is gone, as it is in Apex: call amp.initialize once, and with amp.scale_loss(loss, "
            "optimizer) as scaled_loss: scaled_loss.backward()"
        )

    def wrap_optimizer(self, optimizer: Any, num_loss: int = 1) -> Any:
        """Returns the optimizer of the old API, with scale_loss as a method."""
        return OptimWrapper(optimizer, self, num_loss)

    def _clear_cache(self) -> None:
        session = self._ref()
        if session is not None and session.alive:
            session.context.cache_clear()

    def remove_cache(self, param: Any) -> None:
        """Deletes the cached cast of a parameter, and all others."""
        self._clear_cache()

    @property
    def has_cache(self) -> bool:
        """Returns True if each weight is cast once an iteration."""
        return self._enable_caching

    @property
    def cache(self) -> dict[Any, Any]:
        """Returns an empty dict in place of Apex's: the casts belong to the library."""
        return {}

    @property
    def verbose(self) -> bool:
        """Returns True if casts are printed."""
        return self._verbose

    def _save_func(self, mod: Any, fn: str, func: Any) -> None:
        """Saves a function that a script is about to replace, for _deactivate to restore."""
        self._saved.append((mod, fn, func))

    def _deactivate(self) -> None:
        while self._saved:
            replace_function(*self._saved.pop())
        session = self._ref()
        if session is not None:
            session.shutdown()
        self._active = False


class NoOpHandle:
    """The handle of amp.init(enabled=False)."""

    has_cache = False
    verbose = False

    def is_active(self) -> bool:
        """Returns False."""
        return False

    @contextlib.contextmanager
    def _disable_casts(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def scale_loss(self, loss: Any, optimizer: Any) -> Iterator[Any]:
        """Opens a block with the unscaled loss."""
        yield loss

    def wrap_optimizer(self, optimizer: Any, num_loss: int = 1) -> Any:
        """Returns an optimizer without loss scaling."""
        return OptimWrapper(optimizer, self, num_loss)

    def _clear_cache(self) -> None:
        pass

    def _deactivate(self) -> None:
        pass
