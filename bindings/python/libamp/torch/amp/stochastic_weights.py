# SPDX-License-Identifier: Apache-2.0
"""master_weights="stochastic": bfloat16 parameters without masters. libamp's optimizers round them up or down at random
(amp_optim.h), so steps below half a unit are not lost. The random numbers are a function of the parameter's name, the
optimizer's step count and the element of the whole parameter. A checkpoint needs the count alone, ranks write the same
bytes, and shards those of the whole."""
from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from ... import kernels
from .. import _tested_versions
from .._devices import need_kernels
from .._dtensors import is_stretch

_NAME = "_amp_random_key"
_KINDS = ("FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad")


def check(resolved: dict[str, Any], optimizers: Iterable[Any]) -> None:
    """Raises RuntimeError for a level without bfloat16 parameters, and for other optimizers."""
    if resolved["cast_model_type"] != "bfloat16":
        raise RuntimeError('master_weights="stochastic" is for bfloat16 parameters: use opt_level="O5"')
    ours = importlib.import_module("libamp.torch.optimizers")
    for optimizer in optimizers:
        kind = type(optimizer)
        largest = any(group.get("norm_type") == 0 for group in optimizer.param_groups)
        if kind not in [getattr(ours, name) for name in _KINDS] or getattr(optimizer, "capturable", False) or largest:
            raise RuntimeError(
                f'master_weights="stochastic": {kind.__module__}.{kind.__qualname__} does not round at random. Use '
                f"{', '.join(_KINDS)} of libamp.torch.optimizers, without capturable and norm_type=0, or True"
            )


def mark(named: Iterable[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Gives bfloat16 parameters the keys of their random numbers. Returns them. Raises RuntimeError for a device
    without kernels, and for shards that are not cut by rows."""
    marked = []
    for name, param in named:
        if param.dtype is torch.bfloat16 and param.requires_grad:
            need_kernels(f'master_weights="stochastic" of {name}', param.device, "use True")
            _tested_versions.rounding_on_gpu('master_weights="stochastic"', param.device)
            if not is_stretch(param):
                raise RuntimeError(
                    f'master_weights="stochastic" of {name}: random numbers belong to the elements of the whole '
                    "parameter in order, and this rank's are not consecutive ones: shard it along dimension 0 alone, "
                    "without tensor parallelism, or use True"
                )
            setattr(param, _NAME, kernels.optim_key(0, name.removeprefix("module.")))
            marked.append(param)
    return marked


def unmark(params: Iterable[torch.Tensor]) -> None:
    """Ends it."""
    for param in params:
        vars(param).pop(_NAME, None)


def names_of(models: list[torch.nn.Module]) -> list[tuple[str, torch.Tensor]]:
    """Returns the parameters by name, with the index of their model before it if there are several."""
    return [
        (name if len(models) == 1 else f"{i}.{name}", param)
        for i, model in enumerate(models)
        for name, param in model.named_parameters()
    ]


def keys_of(params: list[torch.Tensor], given: list[int] | None) -> list[int] | None:
    """Returns the keys of a step, None if no parameter is rounded at random."""
    if not any(hasattr(param, _NAME) for param in params):
        return None
    others = range(len(params)) if given is None else given
    return [getattr(param, _NAME, key) for param, key in zip(params, others, strict=True)]
