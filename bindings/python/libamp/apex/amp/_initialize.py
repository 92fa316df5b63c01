# SPDX-License-Identifier: Apache-2.0
"""apex.amp._initialize: the parts of initialize that frameworks call directly."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from libamp.torch.amp import bf16_switch, retype
from libamp.torch.amp.arguments import check_level, check_models, check_optimizers
from libamp.torch.amp.frontend import start
from libamp.torch.amp.process_state import _amp_state, warn_or_err
from libamp.torch.amp.properties import Properties, resolve, settings_of

__all__ = ["applier", "check_models", "check_optimizers", "check_params_fp32", "to_type"]


def to_type(dtype: torch.dtype, t: Any) -> Any:
    """Casts a floating tensor, or any object with `to`, to this type."""
    return t if isinstance(t, torch.Tensor) and not t.is_floating_point() else t.to(dtype)


def applier(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Applies fn to every tensor and every object with `to`. Tuples, lists and sets keep their types. Mappings become
    dicts."""
    if isinstance(value, torch.Tensor) or hasattr(value, "to"):
        return fn(value)
    if isinstance(value, Mapping):
        return {applier(key, fn): applier(item, fn) for key, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(applier(item, fn) for item in value))
    if isinstance(value, (tuple, list, set, frozenset)):
        return type(value)(applier(item, fn) for item in value)
    return value


def _initialize(
    models: Any,
    optimizers: Any,
    properties: Properties,
    num_losses: int = 1,
    cast_model_outputs: torch.dtype | None = None,
) -> Any:
    """Runs initialize with known properties, without its banner."""
    check_level(properties.opt_level)
    bf16_switch.read_properties(properties)
    level, settings = properties.opt_level, settings_of(properties.options)
    resolve(level, settings)
    _amp_state.opt_properties = properties
    return start(models, optimizers, level, settings, num_losses, cast_model_outputs)


def check_params_fp32(models: Iterable[nn.Module]) -> None:
    """Raises RuntimeError if parameters or buffers already have 16 bits."""
    retype.check_incoming(models, warn_or_err)
