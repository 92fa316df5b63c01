# SPDX-License-Identifier: Apache-2.0
"""The precision plugin of libamp.lightning and libamp.pytorch_lightning, two packages with the same classes."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _core
from .torch import amp
from .torch.amp import arguments, checkpoint


class Amp:
    """Precision plugin that runs the training at an opt level: `Trainer(plugins=[AmpPrecision("O2")])`.

    opt_level: "O0" to "O5". settings: other arguments of amp.initialize. Raises RuntimeError for an unknown level.
    """

    def __init__(self, opt_level: str = "O1", **settings: Any) -> None:
        arguments.check_level(opt_level)
        self._settings = {"opt_level": opt_level, **settings}
        self._module: Any = None
        self._session: Any = None
        self._optimizers: list[Any] = []
        self._state: Mapping[str, Any] = {}  # state of the scaler between two trainings

    def connect(self, model: nn.Module, optimizers: list[Any], lr_schedulers: list[Any]) -> Any:
        """Receives from Lightning the model on its device and its optimizers, and calls amp.initialize. Raises
        RuntimeError if a strategy has wrapped the model and the level changes parameter types."""
        module: Any = getattr(model, "module", model)
        models = list(boundaries(module))
        low = _core.resolve(self._settings["opt_level"], {})["cast_model_type"] in ("float16", "bfloat16")
        if module is not model and low:
            raise RuntimeError(
                f"opt_level {self._settings['opt_level']} changes the types of parameters that {type(model).__name__} "
                "has already taken: use O1 or O4 with this strategy"
            )
        amp.initialize(models, optimizers or None, **self._settings)
        self._module, self._optimizers = module, optimizers
        self._session = models[0]._amp_forward.session if models else None
        if self._state and optimizers:
            self.load_state_dict(self._state)
        return model, optimizers, lr_schedulers

    def backward(self, tensor: torch.Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Runs Lightning's backward inside amp.scale_loss. In manual optimization without an optimizer it includes all
        optimizers that are not toggled off."""
        optimizers = [each for each in self._optimizers if _is_on(each)] if optimizer is None else optimizer
        with amp.scale_loss(tensor, optimizers) as scaled:
            super().backward(scaled, model, optimizer, *args, **kwargs)  # type: ignore[misc]

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Runs the closure, which includes backward, before the step, so that the step can skip. L-BFGS calls the
        closure itself."""
        if isinstance(optimizer, torch.optim.LBFGS):
            return super().optimizer_step(optimizer, model, closure, **kwargs)  # type: ignore[misc]
        result = self._wrap_closure(model, optimizer, closure)  # type: ignore[attr-defined]
        if result is None and model.automatic_optimization:
            return None  # training_step skipped this batch
        optimizer.step(**kwargs)
        return result

    def teardown(self) -> None:
        """Restores the model to FP32 and torch's functions."""
        super().teardown()  # type: ignore[misc]
        if self._session is None:
            return
        self._state = self.state_dict()
        self._session.shutdown()
        forward = self._module.__dict__.get("forward")
        if hasattr(forward, "__self__"):  # Lightning leaves the wired forward there if a strategy wraps the module
            del self._module.__dict__["forward"]
        self._session, self._optimizers = None, []

    def state_dict(self) -> Any:
        """Returns the state of the loss scaler."""
        return self._state if self._session is None else checkpoint.state_of(self._session, OrderedDict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a result of state_dict. Before the model is connected the state waits for it."""
        self._state = state_dict
        if self._session is not None:
            checkpoint.load_into(self._session, state_dict)


def boundaries(module: Any) -> Iterator[nn.Module]:
    """Iterates over the modules that take FP32 inputs and return FP32 outputs: the module if it has a forward, else the
    modules that training_step calls."""
    own = getattr(type(module), "forward", None)
    if own not in (nn.Module.forward, _base_forward(type(module))) and not isinstance(module, _CONTAINERS):
        yield module
        return
    for child in module.children():
        if next(child.parameters(), None) is not None:
            yield from boundaries(child)


_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def _base_forward(cls: type) -> Any:
    """Returns the forward that LightningModule defines for modules without one."""
    return next((base.__dict__.get("forward") for base in cls.__mro__ if base.__name__ == "LightningModule"), None)


def _is_on(optimizer: Any) -> bool:
    return any(param.requires_grad for group in optimizer.param_groups for param in group["params"])
