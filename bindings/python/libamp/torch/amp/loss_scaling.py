# SPDX-License-Identifier: Apache-2.0
"""amp.scale_loss opens the bracket around backward. amp.scale and amp.unscale multiply and divide by the loss scale."""
from __future__ import annotations

import operator
from types import TracebackType
from typing import Any

import torch

from . import cuda_graphs, sharding
from ._casting import scaled
from .compiling import outside
from .observed_call import is_readable
from .process_state import _amp_state, loss_probes
from .session import Session, last


def _optimizers_of(optimizers: Any) -> list[Any]:
    if isinstance(optimizers, (list, tuple)):
        return list(optimizers)
    return [] if optimizers is None else [optimizers]


def _session_of(optimizers: list[Any]) -> Session:
    sessions = []
    for optimizer in optimizers:
        stash = getattr(optimizer, "_amp_stash", None)
        if stash is None:
            raise AttributeError(
                f"AMP-M33 {type(optimizer).__name__} has no _amp_stash: an optimizer must go through "
                "amp.initialize before scale_loss"
            )
        sessions.append(stash.session)
    session = sessions[0] if sessions else last()
    if session is None or not session.alive:
        raise RuntimeError(
            "Invoked `with amp.scale_loss`, but amp is not initialized, or was shut down: call amp.initialize"
        )
    if any(other is not session for other in sessions):
        raise RuntimeError(
            "scale_loss: these optimizers were initialised by different calls of amp.initialize, but a loss has one "
            "scale"
        )
    return session


class ScaledLoss:
    """The context manager that scale_loss returns. Entering it returns the scaled loss. Leaving it unscales the
    gradients."""

    __slots__ = ("_arguments", "_bracket", "_entered", "_loss", "_optimizers", "_session")

    def __init__(
        self, loss: Any, optimizers: Any, loss_id: int, delay_unscale: bool, delay_overflow_check: bool
    ) -> None:
        self._loss = loss
        self._bracket: Any = None
        self._entered = False
        if not hasattr(_amp_state, "opt_properties"):
            raise RuntimeError(
                "amp.scale_loss came before amp.initialize, which makes the scaler: call model, optimizer = "
                'amp.initialize(model, optimizer, opt_level="O1") first'
            )
        self._optimizers = _optimizers_of(optimizers)
        self._session: Session | None = None
        if not _amp_state.opt_properties.enabled and not any(hasattr(o, "_amp_stash") for o in self._optimizers):
            return
        if not self._optimizers:
            none = "None" if optimizers is None else "an empty list"
            raise TypeError(
                f"scale_loss: optimizers is {none}, and an optimizer must unscale the gradients: name it"
            )
        session = self._session = _session_of(self._optimizers)
        try:
            loss_id = operator.index(loss_id)
        except TypeError:
            raise TypeError(f"scale_loss: loss_id must be an int, not {loss_id!r}") from None
        if not -session.num_losses <= loss_id < session.num_losses:
            raise IndexError(
                f"loss_id {loss_id} is out of range: amp.initialize was given num_losses={session.num_losses}"
            )
        self._arguments = (loss_id % session.num_losses, delay_unscale, delay_overflow_check)

    @outside
    def __enter__(self) -> Any:
        if self._entered:
            raise RuntimeError(
                "scale_loss: this block was entered before: call amp.scale_loss again for each backward"
            )
        self._entered = True
        if self._session is None:
            return self._loss
        indices = [optimizer._amp_stash.index for optimizer in self._optimizers]
        loss_id, delay_unscale, delay_check = self._arguments
        delay_unscale = delay_unscale or sharding.keeps_gradients(self._session)
        self._arguments = loss_id, delay_unscale, delay_check
        mistakes = self._session.mistakes
        if self._session.observer is not None:
            self._session.observer.leave()
            self._session.observer.began(self._loss)
        for optimizer in self._optimizers:
            cuda_graphs.report_skips(optimizer._amp_stash)
        if cuda_graphs.is_capturing():
            mistakes.finish()  # their checks read from the GPU
        if mistakes.fresh:
            sharding.know_ranks(self._session)
            self._session.find_edits()
            self._session.settle()  # writes that torch does not count. Later the library knows where to search
        mistakes.begin(self._optimizers)
        with cuda_graphs.explained(self._optimizers):
            self._bracket = sharding.begin(self._session, indices, loss_id, delay_unscale, delay_check)
        if self._session.traces():
            self._note_loss(loss_id)
        try:
            watch = self._session.watch
            if watch is not None and not watch.told and isinstance(self._loss, torch.Tensor):
                watch.check(self._loss)
            result = scaled(self._loss, self._bracket.scale)
            mistakes.begun(self._bracket.scale, result, self._optimizers)
            for probe in list(loss_probes):
                probe.measure(result)
            return result
        except BaseException:
            self._bracket.cancel()
            raise

    def _note_loss(self, loss_id: int) -> None:
        """Writes the loss to the trace. A GPU is not waited for."""
        loss = self._loss
        if self._session is not None and is_readable(loss) and loss.device.type == "cpu" and loss.numel() == 1:
            self._session.context.observe_loss(loss_id, loss.detach().item())

    @outside
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        bracket, self._bracket = self._bracket, None
        self._loss = None
        if bracket is None or self._session is None:
            return
        mistakes = self._session.mistakes
        if kind is not None:
            bracket.cancel()
            mistakes.cancelled(self._optimizers)
            return
        try:
            mistakes.end(self._optimizers)
        except BaseException:  # a finding that is an error (-W error)
            bracket.cancel()
            raise
        loss_id, delay_unscale, _ = self._arguments
        skip = sharding.end(self._session, bracket, delay_unscale) == 1
        if self._session.scalers:
            self._session.scalers[loss_id]._hasten()
        mistakes.ended(self._optimizers)
        if self._session.observer is not None:
            self._session.observer.ended()
        for optimizer in self._optimizers:
            stash = optimizer._amp_stash
            stash.params_have_scaled_gradients = delay_unscale
            stash.already_patched |= skip
            if skip or not stash.already_patched:
                stash.loss_id = loss_id


@outside
def scale_loss(
    loss: Any,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> ScaledLoss:
    """Opens a bracket: `with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`.

    The block receives the loss times the loss scale. At its end the gradients are unscaled (FP32, in the masters where
    there are masters), and the next step of each optimizer either steps or, after an overflow, skips. If the block
    raises, the gradients are restored to their values before it. At a static scale of 1 without masters a gradient that
    was None becomes None again. After the first four blocks that holds only if optimizer.zero_grad has set it to None.

    loss: a tensor. optimizers: one optimizer, a list or a tuple. loss_id: index of the loss scaler, below num_losses.
    model: not used, as in Apex. delay_unscale: True leaves the gradients scaled in .grad for a later block with the
    same loss_id, in which backward adds to them (gradient accumulation, DDP). delay_overflow_check: True unscales, and
    leaves the decision to step or skip to a later block.

    Raises RuntimeError before initialize or after shutdown, AttributeError for an optimizer that initialize does not
    know, TypeError without an optimizer, IndexError for a loss_id out of range. The semantics are Apex's.
    """
    return ScaledLoss(loss, optimizers, loss_id, delay_unscale, delay_overflow_check)


def _scale_by_hand(optimizer: Any, loss_id: int) -> float:
    session = _session_of(_optimizers_of(optimizer))
    if session.mistakes is not None:
        session.mistakes.by_hand = True
    return float(session.context.scale(loss_id))


def scale(tensor: torch.Tensor, loss_id: int = 0, optimizer: Any = None) -> torch.Tensor:
    """Returns `tensor` times the present loss scale, recorded by autograd. Use it before torch.autograd.grad, for
    gradient penalties.

    loss_id: index of the loss scaler. optimizer: selects the initialize call, None the last one. Raises as scale_loss
    does.
    """
    return scaled(tensor, _scale_by_hand(optimizer, loss_id))


def unscale(tensors: Any, loss_id: int = 0, optimizer: Any = None) -> Any:
    """Returns the tensors divided by the present loss scale, recorded by autograd. Use it on the results of
    torch.autograd.grad for a scaled loss.

    tensors: a tensor, or a list or tuple of tensors and None. loss_id, optimizer: as for scale.
    """
    factor = 1.0 / _scale_by_hand(optimizer, loss_id)
    if isinstance(tensors, torch.Tensor):
        return tensors * factor
    return type(tensors)(None if tensor is None else tensor * factor for tensor in tensors)
