# SPDX-License-Identifier: Apache-2.0
"""Steps that a GPU decides on alone, and captures of CUDA graphs: nothing may wait there for what the GPU finds."""
from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from ... import _core
from . import wrapped


def is_capturing() -> bool:
    """Is the current stream being captured in a CUDA graph?"""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


# ---- optimizers that skip by themselves ----


def skips_by_itself(optimizer: Any, others: list[Any]) -> bool:
    """Does its step read found_inf, as torch's GradScaler tells it? Not by what it hands on to one inside it."""
    if not inspect.getattr_static(optimizer, "_step_supports_amp_scaling", False):
        return False
    return not wrapped.inside(optimizer, others) and "grad_scaler" not in inspect.signature(optimizer.step).parameters


def _begins(optimizer: Any, group: dict[str, Any]) -> bool:
    params = group["params"] if group["momentum"] else ()
    return any(
        param.grad is not None and optimizer.state.get(param, {}).get("momentum_buffer") is None for param in params
    )


def settle(optimizer: Any, found_inf: Any) -> Any:
    """What step_begin told of this step. torch's fused SGD makes its momentum in a first step, and leaves it unwritten
    where that skips: the GPU is asked before."""
    if not isinstance(found_inf, torch.Tensor) or not isinstance(optimizer, torch.optim.SGD):
        return found_inf
    if not any(_begins(optimizer, group) for group in optimizer.param_groups):
        return found_inf
    if is_capturing():
        raise RuntimeError("the first step of SGD with momentum waits for the GPU: make it before the capture")
    return bool(found_inf)


@contextlib.contextmanager
def told(optimizer: Any, found_inf: Any) -> Iterator[None]:
    """The optimizer hears where a GPU says whether to skip."""
    if isinstance(found_inf, torch.Tensor):
        optimizer.found_inf = found_inf
    try:
        yield
    finally:
        if isinstance(found_inf, torch.Tensor):
            del optimizer.found_inf


# ---- captures ----


def check_warm(session: Any) -> None:
    """Before the first forward and the first backward, which compare masters and parameters."""
    if session.masters and is_capturing():
        raise RuntimeError(
            "the first iteration after amp.initialize compares parameters and masters, which waits for the GPU: run "
            "two or three before the capture"
        )


@contextlib.contextmanager
def explained(optimizers: list[Any]) -> Iterator[None]:
    """The begin of a bracket, in a script's words where a capture refuses it."""
    try:
        yield
    except _core.Error as error:
        if not is_capturing():
            raise
        names = ", ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers))
        raise RuntimeError(
            f"scale_loss with {names} cannot be captured in a CUDA graph, which asks nobody whether to step. It takes "
            "optimizers that skip by themselves (torch's with fused=True, libamp's FusedAdam(capturable=True) and "
            "FusedMixedPrecisionLamb), all parameters on one GPU, and no ranks to agree with. Otherwise capture the "
            "model alone: torch.cuda.make_graphed_callables"
        ) from error


def is_graphed(module: torch.nn.Module) -> bool:
    """Is its forward one that torch.cuda.make_graphed_callables has put there?"""
    name = getattr(module.__dict__.get("forward"), "__qualname__", "")
    return name.startswith("make_graphed_callables.<locals>")
