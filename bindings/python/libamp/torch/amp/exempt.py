# SPDX-License-Identifier: Apache-2.0
"""Exempts code from the casts of every level: a block, or the forward of a module.

    with amp.exempt():                                     a block, as amp.disable_casts()
        penalty = (weights ** 2).sum()
    amp.exempt(model.head, cast_inputs=torch.float32)      a module, wherever it is called, until .remove()
    with amp.exempt(teacher):                              a module, for a block
        ...
"""
from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from ... import _core
from ._casting import cast_tree

_AFTER_ERRORS = "always_call" in inspect.signature(torch.nn.Module.register_forward_hook).parameters


def _enter(dtype: torch.dtype | None, module: Any, args: Any, kwargs: Any) -> Any:
    _core.enter_none()
    return None if dtype is None else (cast_tree(args, dtype), cast_tree(kwargs, dtype))


def _leave(module: Any, args: Any, output: Any) -> None:
    _core.leave()


class _Forward:
    """Replaces the forward of an exempted module before torch 2.1, which has no hooks that also run after an error. It
    is an attribute of the module, not of its class, so that copies and pickles have their own."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype | None) -> None:
        self.module, self.dtype, self.removed = module, dtype, False
        self.own = module.__dict__.get("forward")
        module.__dict__["forward"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.own or functools.partial(type(self.module).forward, self.module)
        if self.removed:
            return forward(*args, **kwargs)
        if self.dtype is not None:
            args, kwargs = cast_tree(args, self.dtype), cast_tree(kwargs, self.dtype)
        _core.enter_none()
        try:
            return forward(*args, **kwargs)
        finally:
            _core.leave()

    def remove(self) -> None:
        self.removed = True  # another wrapper may be around it
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]
            if self.own is not None:
                self.module.__dict__["forward"] = self.own


class exempt:
    """Exempts a block or the forward of a module from the casts of every level.

    module: a torch.nn.Module, exempt until remove() or the end of a `with` block. None exempts the `with` block itself.

    cast_inputs: torch.dtype to which the floating inputs of the module are cast. Use torch.float32 for an FP32 module
    that receives 16-bit outputs of other modules.

    Raises TypeError if module is no torch.nn.Module, ValueError for cast_inputs without a module.
    """

    def __init__(self, module: torch.nn.Module | None = None, cast_inputs: torch.dtype | None = None) -> None:
        self._hooks: list[Any] = []
        self._module = module
        if module is None:
            if cast_inputs is not None:
                raise ValueError("exempt: cast_inputs is for the inputs of a module, and none is given")
            return
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"exempt: a torch.nn.Module is wanted, not {type(module).__name__}")
        if not _AFTER_ERRORS:
            self._hooks.append(_Forward(module, cast_inputs))
            return
        # Functions of this file, so that the module can be copied and pickled as ever.
        enter = functools.partial(_enter, cast_inputs)
        self._hooks.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(_leave, always_call=True))

    def remove(self) -> None:
        """Ends the exemption: the casts of the level apply to the module again."""
        while self._hooks:
            self._hooks.pop().remove()

    def __enter__(self) -> exempt:
        if self._module is None:
            _core.enter_none()
        return self

    def __exit__(self, *error: object) -> None:
        if self._module is None:
            _core.leave()
        else:
            self.remove()
