# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of initialize."""
from __future__ import annotations

import operator
from typing import Any

from torch import nn

from . import cuda_graphs, optimizer_wiring, outer_optimizers
from .levels import opt_levels


def check_level(level: Any) -> str:
    """Returns the opt level, a string "O0" to "O5". Raises RuntimeError for anything else."""
    if isinstance(level, str) and level in opt_levels:
        return level
    raise RuntimeError(
        f"opt_level is {level!r}, and must be one of {', '.join(map(repr, opt_levels))}: a letter O and a digit, "
        "not a zero and a digit"
    )


def check_num_losses(num_losses: Any) -> int:
    """Returns the number of losses. Raises TypeError or ValueError if it is none."""
    try:
        count = operator.index(num_losses)
    except TypeError:
        raise TypeError(f"num_losses must be an int, not {num_losses!r}") from None
    if not 1 <= count < 2**31:
        raise ValueError(
            f"num_losses is {count}, and must be the number of losses that are scaled one by one, 1 or more"
        )
    return count


def check_verbosity(verbosity: Any) -> None:
    """Raises TypeError for a verbosity that is no integer."""
    if not hasattr(verbosity, "__index__"):
        raise TypeError(f"verbosity must be an int (0: silent, 1: the lines of Apex), not {verbosity!r}")


def list_models(models: Any) -> list[nn.Module]:
    """Returns the models as a list. Raises TypeError for anything else."""
    if isinstance(models, nn.Module):
        return [models]
    if isinstance(models, list):
        return models
    raise TypeError(f"models must be one model or a list of them, not a {type(models).__name__}")


def list_optimizers(optimizers: Any) -> list[Any]:
    """Returns the optimizers as a list. Raises TypeError for anything else."""
    if optimizers is None:
        return []
    if isinstance(optimizers, list):
        return optimizers
    if outer_optimizers.is_optimizer(optimizers):
        return [optimizers]
    raise TypeError(f"optimizers must be one optimizer or a list of them, not a {type(optimizers).__name__}")


def check_models(models: list[nn.Module]) -> None:
    """Raises TypeError or RuntimeError if initialize cannot take these models: wrapped, graphed or on the meta
    device."""
    for item in models:
        if not isinstance(item, nn.Module):
            raise TypeError(f"models must be torch.nn.Modules, not {type(item).__name__}")
        if type(item).__name__ in ("DistributedDataParallel", "DataParallel"):
            raise RuntimeError(
                f"the model is wrapped in {type(item).__module__}.{type(item).__name__}: give amp.initialize the bare "
                "model, and wrap it AFTER that"
            )
        for name, module in item.named_modules():
            if cuda_graphs.is_graphed(module):
                raise RuntimeError(
                    f"{name or 'The model'} went through torch.cuda.make_graphed_callables: its graphs have no casts, "
                    "and use memory that amp.initialize replaces. Make them AFTER amp.initialize"
                )
        for name, tensor in (*item.named_parameters(), *item.named_buffers()):
            if tensor.is_meta:
                raise RuntimeError(
                    f"{name} is on the meta device and has no elements: give the model memory (to_empty, and its "
                    "weights) before amp.initialize"
                )


def check_optimizers(optimizers: list[Any]) -> None:
    """Raises TypeError or RuntimeError if initialize cannot take these optimizers, for example one listed twice."""
    for i, optimizer in enumerate(optimizers):
        if type(optimizer).__name__ == "FP16_Optimizer":
            raise RuntimeError("the optimizer is an FP16_Optimizer, which scales by itself: give the bare optimizer")
        if not outer_optimizers.is_optimizer(optimizer):
            raise TypeError(f"an optimizer has param_groups, step and zero_grad; {type(optimizer).__name__} has not")
        if hasattr(optimizer, "_amp_stash") or any(optimizer is other for other in optimizers[:i]):
            raise RuntimeError(
                f"{type(optimizer).__name__} is initialized already, or listed twice: amp.shutdown(optimizer) comes "
                "before another amp.initialize"
            )
        for name in optimizer_wiring.PRIVATE:
            if hasattr(optimizer, name):
                raise RuntimeError(f"Incoming optimizer already has {name} defined.")
