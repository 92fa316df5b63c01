# SPDX-License-Identifier: Apache-2.0
"""Code that no policy reaches: a block, or whatever a module's forward does.

    with amp.exempt():                                     a block, as amp.disable_casts()
        penalty = (weights ** 2).sum()
    amp.exempt(model.head, cast_inputs=torch.float32)      a module, wherever it is called, until .remove()
    with amp.exempt(teacher):                              a module, for a block
        ...
"""
from __future__ import annotations

import functools
from typing import Any

import torch

from ... import _core
from ._casting import cast_tree


def _enter(dtype: torch.dtype | None, module: Any, args: Any, kwargs: Any) -> Any:
    _core.enter_none()
    return None if dtype is None else (cast_tree(args, dtype), cast_tree(kwargs, dtype))


def _leave(module: Any, args: Any, output: Any) -> None:
    _core.leave()


class exempt:
    """`cast_inputs`: the floating tensors that the module gets become this type; a module in FP32 that is fed by others
    whose outputs are 16-bit wants torch.float32."""

    def __init__(self, module: torch.nn.Module | None = None, cast_inputs: torch.dtype | None = None) -> None:
        self._hooks: list[Any] = []
        self._module = module
        if module is None:
            if cast_inputs is not None:
                raise ValueError("exempt: cast_inputs is for the inputs of a module, and none is given")
            return
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"exempt: a torch.nn.Module is wanted, not {type(module).__name__}")
        # Functions of this file, so that the module can be copied and pickled as ever.
        self._hooks.append(
            module.register_forward_pre_hook(functools.partial(_enter, cast_inputs), prepend=True, with_kwargs=True)
        )
        try:
            self._hooks.append(module.register_forward_hook(_leave, always_call=True))
        except TypeError:  # torch 2.0
            self._hooks.append(module.register_forward_hook(_leave))

    def remove(self) -> None:
        """The module obeys the policy again."""
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
