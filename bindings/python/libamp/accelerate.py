# SPDX-License-Identifier: Apache-2.0
"""Runs Hugging Face accelerate, and trainers that are built on it, at one of libamp's levels.

    accelerator = libamp.accelerate.initialize(Accelerator(), opt_level="O2")       # a script
    libamp.accelerate.initialize(trainer.accelerator, opt_level="O2")               # transformers.Trainer and others
"""
from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from .torch import amp
from .torch.amp import arguments, checkpoint

_NO = {
    "DEEPSPEED": "DeepSpeed scales losses and keeps masters itself: use its own fp16 or bf16 configuration",
    "FSDP": "shard by hand (docs/reference/python.md says in which order), or use FSDP's own MixedPrecision",
    "MEGATRON_LM": "Megatron-LM has its own mixed precision",
    "XLA": "XLA devices are not supported",
}


def initialize(accelerator: Any, opt_level: str = "O1", **settings: Any) -> Any:
    """Makes `accelerator.prepare(model, optimizer, ...)` call amp.initialize with these arguments, and returns the
    accelerator.

    backward, clipping, schedulers, save_state and load_state use amp then. accelerator: an accelerate.Accelerator,
    before its prepare. opt_level: "O0" to "O5". settings: other arguments of amp.initialize.

    Raises TypeError for another object, ValueError if the accelerator has its own mixed precision or an unsupported
    distributed type, RuntimeError if it has already prepared models or for an unknown opt_level.
    """
    if not isinstance(accelerator, accelerate.Accelerator):
        raise TypeError(
            f"libamp.accelerate.initialize takes an accelerate.Accelerator, not a {type(accelerator).__name__}: of a "
            "trainer that is trainer.accelerator"
        )
    arguments.check_level(opt_level)
    if accelerator.mixed_precision != "no":
        raise ValueError(
            f"the accelerator has mixed_precision={accelerator.mixed_precision!r} of its own: leave fp16 and bf16 out "
            "(of TrainingArguments, Accelerator, and `accelerate config`), the level says which type"
        )
    kind = accelerator.distributed_type.name
    if kind in _NO:
        raise ValueError(f"libamp does not go with accelerate's {kind}: {_NO[kind]}")
    if accelerator._models or accelerator._optimizers:
        raise RuntimeError("the accelerator has prepared models already: call libamp.accelerate.initialize before that")
    own = type(accelerator)
    accelerator.__class__ = _with_amp(own.__mro__[2] if issubclass(own, Amp) else own)
    accelerator._amp_settings = {"opt_level": opt_level, **settings}
    accelerator.scaler = Scaler(accelerator)
    return accelerator


@functools.cache
def _with_amp(own: type) -> type:
    return type(own.__name__, (Amp, own), {"__module__": own.__module__, "__doc__": own.__doc__})


class Scaler:
    """The object in `accelerator.scaler` that accelerate and trainers save and load."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def scale(self, loss: Any) -> Any:
        """Returns the loss unchanged, because Amp.backward scales it."""
        return loss

    def get_scale(self) -> float:
        """Returns the present loss scale, 1.0 without an optimizer."""
        session = self._accelerator._session()
        return 1.0 if session is None else float(session.scalers[0].loss_scale())

    def state_dict(self) -> Any:
        """Returns amp.state_dict() of this accelerator."""
        return checkpoint.state_of(self._accelerator._session(), OrderedDict())

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads a result of state_dict. Raises RuntimeError before the model and its optimizer are prepared."""
        session = self._accelerator._session()
        if not self._accelerator._amp_settings.get("enabled", True):
            return
        if session is None:
            raise RuntimeError("nothing takes the loss scale: prepare the model and its optimizer before loading")
        checkpoint.load_into(session, state_dict)


class Optimizer(AcceleratedOptimizer):
    """Reports skipped steps to accelerate, so that schedulers keep the learning rate after a skip."""

    @property
    def step_was_skipped(self) -> bool:
        """Returns True if the last step was skipped."""
        return amp.stepped(self.optimizer) is False


class Amp:
    """Base class before an accelerator's own class, which it extends with amp."""

    _amp_settings: dict[str, Any]
    _optimizers: list[Any]

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Prepares as accelerate does, after amp.initialize of models and optimizers together. Raises RuntimeError if
        they come in separate calls."""
        models = [self.unwrap_model(each) for each in args if isinstance(each, nn.Module)]  # type: ignore[attr-defined]
        optimizers = [_bare(each) for each in args if isinstance(each, torch.optim.Optimizer)]
        if not all(amp.initialized(each) for each in (*models, *optimizers)):
            self._initialize(models, optimizers)
        return super().prepare(*args, device_placement=device_placement)  # type: ignore[misc]

    def _initialize(self, models: list[nn.Module], optimizers: list[Any]) -> None:
        if optimizers and not models:
            raise RuntimeError("give accelerator.prepare the model and its optimizer in one call: amp joins them there")
        if optimizers and self._optimizers:
            raise RuntimeError("give all models and optimizers to one accelerator.prepare(...): a loss has one scale")
        for each in (*models, *optimizers):
            amp.shutdown(each)  # after an earlier training
        if self.device_placement:  # type: ignore[attr-defined]
            for model in models:
                model.to(self.device)  # type: ignore[attr-defined]
        amp.initialize(models, optimizers or None, **self._amp_settings)

    def prepare_optimizer(self, optimizer: Any, device_placement: Any = None) -> Any:
        """Prepares as accelerate does. The step is amp's and reports skips."""
        prepared = super().prepare_optimizer(optimizer, device_placement)  # type: ignore[misc]
        prepared.scaler, prepared.__class__ = None, Optimizer
        return prepared

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Runs accelerate's backward inside amp.scale_loss. Raises RuntimeError if no optimizer is prepared."""
        if not self._optimizers and self._amp_settings.get("enabled", True):
            raise RuntimeError(
                "no optimizer uses the gradients: pass the model and its optimizer to one call of accelerator.prepare"
            )
        with amp.scale_loss(loss, [_bare(each) for each in self._optimizers]) as scaled:
            super().backward(scaled, **kwargs)  # type: ignore[misc]

    def clip_grad_norm_(self, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """Clips as accelerate does, on the masters of these parameters."""
        return super().clip_grad_norm_(self._masters_of(parameters), *args, **kwargs)  # type: ignore[misc]

    def clip_grad_value_(self, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """Clips as accelerate does, on the masters of these parameters."""
        return super().clip_grad_value_(self._masters_of(parameters), *args, **kwargs)  # type: ignore[misc]

    def _session(self) -> Any:
        """Returns the session, None without an optimizer or with enabled=False."""
        stash = getattr(_bare(self._optimizers[0]), "_amp_stash", None) if self._optimizers else None
        return None if stash is None else stash.session

    def _masters_of(self, parameters: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        session = self._session()
        return [param if session is None else session.masters.get(id(param), param) for param in listed]


def _bare(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
