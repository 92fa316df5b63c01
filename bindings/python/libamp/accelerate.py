# SPDX-License-Identifier: Apache-2.0
"""Hugging Face accelerate, and the trainers that are built on it, at a level of libamp's:

    accelerator = libamp.accelerate.initialize(Accelerator(), opt_level="O2")       # a script
    libamp.accelerate.initialize(trainer.accelerator, opt_level="O2")               # transformers.Trainer and its kin
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
from .torch.amp import checkpoint, frontend

_NO = {
    "DEEPSPEED": "DeepSpeed scales losses and keeps masters itself: use its own fp16 or bf16 configuration",
    "FSDP": "shard by hand (docs/reference/python.md says in which order), or use FSDP's own MixedPrecision",
    "MEGATRON_LM": "Megatron-LM has its own mixed precision",
    "XLA": "XLA devices are not supported",
}


def initialize(accelerator: Any, opt_level: str = "O1", **settings: Any) -> Any:
    """From here on `accelerator.prepare(model, optimizer, ...)` calls amp.initialize with these arguments, and
    backward, clipping, schedulers, save_state and load_state are amp's. Returns the accelerator."""
    if not isinstance(accelerator, accelerate.Accelerator):
        raise TypeError(
            f"libamp.accelerate.initialize takes an accelerate.Accelerator, not a {type(accelerator).__name__}: of a "
            "trainer that is trainer.accelerator"
        )
    frontend.check_level(opt_level)
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
    """What accelerate and trainers find as `accelerator.scaler`, and save and load with the rest."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def scale(self, loss: Any) -> Any:
        """The loss, which Amp.backward has scaled."""
        return loss

    def get_scale(self) -> float:
        """What the next loss is multiplied by."""
        session = self._accelerator._session()
        return 1.0 if session is None else float(session.scalers[0].loss_scale())

    def state_dict(self) -> Any:
        """As amp.state_dict(), of this accelerator."""
        return checkpoint.state_of(self._accelerator._session(), OrderedDict())

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes what state_dict gave."""
        session = self._accelerator._session()
        if not self._accelerator._amp_settings.get("enabled", True):
            return
        if session is None:
            raise RuntimeError("nothing takes the loss scale: prepare the model and its optimizer before loading")
        checkpoint.load_into(session, state_dict)


class Optimizer(AcceleratedOptimizer):
    """Tells schedulers of skips, which leave the learning rate as it is."""

    @property
    def step_was_skipped(self) -> bool:
        """Was the last step?"""
        return amp.stepped(self.optimizer) is False


class Amp:
    """Goes before an accelerator's own class."""

    _amp_settings: dict[str, Any]
    _optimizers: list[Any]

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """accelerate's, over models and optimizers that went through amp.initialize together."""
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
            amp.shutdown(each)  # of a training before
        if self.device_placement:  # type: ignore[attr-defined]
            for model in models:
                model.to(self.device)  # type: ignore[attr-defined]
        amp.initialize(models, optimizers or None, **self._amp_settings)

    def prepare_optimizer(self, optimizer: Any, device_placement: Any = None) -> Any:
        """accelerate's, whose step is amp's and tells of skips."""
        prepared = super().prepare_optimizer(optimizer, device_placement)  # type: ignore[misc]
        prepared.scaler, prepared.__class__ = None, Optimizer
        return prepared

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """accelerate's, inside amp.scale_loss."""
        if not self._optimizers and self._amp_settings.get("enabled", True):
            raise RuntimeError(
                "nobody takes the gradients: give accelerator.prepare the model and its optimizer in one call"
            )
        with amp.scale_loss(loss, [_bare(each) for each in self._optimizers]) as scaled:
            super().backward(scaled, **kwargs)  # type: ignore[misc]

    def clip_grad_norm_(self, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """accelerate's, on the masters of these parameters."""
        return super().clip_grad_norm_(self._masters_of(parameters), *args, **kwargs)  # type: ignore[misc]

    def clip_grad_value_(self, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """accelerate's, on the masters of these parameters."""
        return super().clip_grad_value_(self._masters_of(parameters), *args, **kwargs)  # type: ignore[misc]

    def _session(self) -> Any:
        """None before there is an optimizer, and with enabled=False."""
        stash = getattr(_bare(self._optimizers[0]), "_amp_stash", None) if self._optimizers else None
        return None if stash is None else stash.session

    def _masters_of(self, parameters: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        session = self._session()
        return [param if session is None else session.masters.get(id(param), param) for param in listed]


def _bare(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
