# SPDX-License-Identifier: Apache-2.0
"""Steps that a GPU decides on alone, and captures of CUDA graphs: nothing may wait there for what the GPU finds."""
from __future__ import annotations

import contextlib
import functools
import inspect
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ... import _core
from .._devices import Copy
from . import outer_optimizers
from .compiling import run_as_it_is
from .process_state import maybe_print


def overflow(loss_id: int, scale: float) -> str:
    """Apex's words of a skip."""
    return f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scale}"


def thinned(message: str) -> str:
    """Of the library's words of a skip: those on lines that are left out."""
    for begins in (" From here on skips", " ("):
        at = message.rfind(begins)
        if at >= 0 and ("since the last line" in message[at:] or begins != " ("):
            return message[at:]
    return ""


def is_capturing() -> bool:
    """Is the current stream being captured in a CUDA graph?"""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


# ---- optimizers that skip by themselves ----


def skips_by_itself(optimizer: Any, others: list[Any]) -> bool:
    """Does its step read found_inf, as torch's GradScaler tells it? Not by what it hands on to one inside it. libamp's
    own do, but classes derived from them may have a step of their own."""
    if vars(type(optimizer)).get("_skips_by_flag", False):
        return not outer_optimizers.inside(optimizer, others)
    if not inspect.getattr_static(optimizer, "_step_supports_amp_scaling", False):
        return False
    has_inner = bool(outer_optimizers.inside(optimizer, others))
    return not has_inner and "grad_scaler" not in inspect.signature(optimizer.step).parameters


def _begins(optimizer: Any, group: dict[str, Any]) -> bool:
    params = group["params"] if group["momentum"] else ()
    return any(
        param.grad is not None and optimizer.state.get(param, {}).get("momentum_buffer") is None for param in params
    )


def settle(optimizer: Any, found_inf: Any) -> Any:
    """What step_begin told of this step. torch's fused SGD makes its momentum in a first step, and leaves it unwritten
    where that skips; some of libamp's own take a first step otherwise than others: the GPU is asked before."""
    if not isinstance(found_inf, torch.Tensor):
        return found_inf
    ours = vars(type(optimizer)).get("_skips_by_flag", False)
    if not ours and not isinstance(optimizer, torch.optim.SGD):
        return found_inf
    begins = optimizer._begins if ours else functools.partial(_begins, optimizer)
    if not any(begins(group) for group in optimizer.param_groups):
        return found_inf
    if is_capturing():
        name = type(optimizer).__name__
        raise RuntimeError(f"the first step of {name} waits for the GPU: make it before the capture")
    return bool(found_inf)


@contextlib.contextmanager
def lend_found_inf(optimizer: Any, found_inf: Any) -> Iterator[None]:
    """The optimizer hears where a GPU says whether to skip."""
    if isinstance(found_inf, torch.Tensor):
        optimizer.found_inf = found_inf
    try:
        yield
    finally:
        if isinstance(found_inf, torch.Tensor):
            del optimizer.found_inf


run_as_it_is(inspect.unwrap(lend_found_inf).__code__)


# ---- what the host hears of it ----


class Skips:
    """An optimizer's steps that a GPU decided on: heard of when the word has come, for which nobody waits. Where no
    event tells that it has come, the device is asked after so many steps."""

    _ASKED_AFTER = 64

    def __init__(self) -> None:
        self._coming: deque[Copy] = deque()
        self._unheard = 0  # steps
        self.told = 0  # skips of the loss scaler

    def send(self, found_inf: torch.Tensor) -> None:
        """A step was made, or not."""
        if is_capturing():
            return
        copy = Copy(4, found_inf.device)
        if copy.tells:
            copy.start(found_inf)
            self._coming.append(copy)
        else:
            self._unheard += 1

    def any(self) -> bool:
        """Was one of those skipped whose word has come since? True too where it is time to ask."""
        if self._unheard >= self._ASKED_AFTER and not is_capturing():
            self._unheard = 0
            return True
        skipped = False
        while self._coming and not is_capturing() and self._coming[0].arrived():
            skipped = bool(self._coming.popleft().wait().view(torch.float32)) or skipped
        return skipped


def report_skips(stash: Any) -> None:
    """Before a bracket. Skips are told as the library tells them; one of them asks the GPU, which waits."""
    if not stash.skips.any():
        return
    session = stash.session
    record = session.context.record(stash.loss_id)
    before, stash.skips.told = stash.skips.told, record["skipped"]
    shown = record["skipped"] <= 10 or record["skipped"].bit_length() > before.bit_length()
    if session.verbosity > 0 and record["skipped"] != before and shown:
        maybe_print(overflow(stash.loss_id, record["scale_after"]), True)
    session.context.check()


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
