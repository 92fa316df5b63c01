# SPDX-License-Identifier: Apache-2.0
"""What torch.compile is told of the library's own frames, without an import of torch._dynamo, which takes seconds."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_frames: Any = torch._C._dynamo.eval_frame
set_compiler: Callable[[Any], Any] = _frames.set_eval_frame  # this thread's; None: none. Returns the one before

# True where torch.compile traces, a constant to it; torch 2.0 has none, and bool() is False
is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def run_as_it_is(code: types.CodeType, calls: bool = False) -> None:
    """torch.compile leaves frames of this code alone; `calls`: and what they call, which it compiles otherwise."""
    if hasattr(_frames, "skip_code"):  # until torch 2.6
        _frames.skip_code(code)
    else:
        skip, default = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, skip if calls else default))


def apart(function: _Function, calls: bool = False) -> _Function:
    """A graph ends before its call, as before that of a torch.compiler.disable'd function; calls: see run_as_it_is."""
    marked: Any = function
    run_as_it_is(marked.__code__, calls)
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "libamp: gradients and masters change hands there"
    return function


def outside(function: _Function) -> _Function:
    """Never part of a graph, nor is what it calls: brackets and the like."""
    return apart(function, calls=True)
