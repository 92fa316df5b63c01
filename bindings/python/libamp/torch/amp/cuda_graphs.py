# SPDX-License-Identifier: Apache-2.0
"""Steps that only the GPU decides, and captures of CUDA graphs. Neither may wait for results of the GPU."""
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
    """Returns Apex's message about a skip."""
    return f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scale}"


def thinned(message: str) -> str:
    """Returns the part of a message about a skip that reports omitted lines."""
    for begins in (" From here on skips", " ("):
        at = message.rfind(begins)
        if at >= 0 and ("since the last line" in message[at:] or begins != " ("):
            return message[at:]
    return ""


def is_capturing() -> bool:
    """Returns True while the current stream is being captured in a CUDA graph."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


# ---- optimizers that skip by themselves ----


def skips_by_itself(optimizer: Any, others: list[Any]) -> bool:
    """Returns True if the step reads found_inf as torch's GradScaler sets it, other than to pass it to an inner
    optimizer. libamp's optimizers do, but derived classes may have their own step."""
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
    """Returns the result of step_begin for this step. torch's fused SGD creates its momentum in a first step and leaves
    it unwritten after a skip, and some of libamp's optimizers treat a first step differently. For these it waits for
    the GPU."""
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
    """Sets the optimizer's found_inf for a step."""
    if isinstance(found_inf, torch.Tensor):
        optimizer.found_inf = found_inf
    try:
        yield
    finally:
        if isinstance(found_inf, torch.Tensor):
            del optimizer.found_inf


run_as_it_is(inspect.unwrap(lend_found_inf).__code__)


# ---- reports to the host ----


class Skips:
    """The steps of an optimizer that a GPU decided. Results are received when they arrive, without waiting. Without
    events the device is read after a number of steps."""

    _ASKED_AFTER = 64

    def __init__(self) -> None:
        self._coming: deque[Copy] = deque()
        self._unheard = 0  # steps
        self.told = 0  # skips of the loss scaler

    def send(self, found_inf: torch.Tensor) -> None:
        """Starts to copy the result of a step."""
        if is_capturing():
            return
        copy = Copy(4, found_inf.device)
        if copy.tells:
            copy.start(found_inf)
            self._coming.append(copy)
        else:
            self._unheard += 1

    def any(self) -> bool:
        """Returns True if a result that has arrived is a skip, or if it is time to read the device."""
        if self._unheard >= self._ASKED_AFTER and not is_capturing():
            self._unheard = 0
            return True
        skipped = False
        while self._coming and not is_capturing() and self._coming[0].arrived():
            skipped = bool(self._coming.popleft().wait().view(torch.float32)) or skipped
        return skipped


def report_skips(stash: Any) -> None:
    """Reports skips, before a bracket, as the library does. For a skip it reads the GPU, which waits."""
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
    """Raises RuntimeError in a capture before the first forward and backward, which compare masters and parameters."""
    if session.masters and is_capturing():
        raise RuntimeError(
            "the first iteration after amp.initialize compares parameters and masters, which waits for the GPU: run "
            "two or three before the capture"
        )


@contextlib.contextmanager
def explained(optimizers: list[Any]) -> Iterator[None]:
    """Opens a block in which an error of the capture at a bracket's begin becomes a RuntimeError with advice."""
    try:
        yield
    except _core.Error as error:
        if not is_capturing():
            raise
        names = ", ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers))
        raise RuntimeError(
            f"scale_loss with {names} cannot be captured in a CUDA graph, because nothing decides there whether to "
            "step. Use optimizers that skip by themselves (torch's with fused=True, libamp's "
            "FusedAdam(capturable=True) and FusedMixedPrecisionLamb), all parameters on one GPU, and no ranks to agree "
            "with. Otherwise capture the model alone: torch.cuda.make_graphed_callables"
        ) from error


def is_graphed(module: torch.nn.Module) -> bool:
    """Returns True if torch.cuda.make_graphed_callables has replaced the module's forward."""
    name = getattr(module.__dict__.get("forward"), "__qualname__", "")
    return name.startswith("make_graphed_callables.<locals>")
