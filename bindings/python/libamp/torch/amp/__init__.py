# SPDX-License-Identifier: Apache-2.0
"""apex.amp for today's PyTorch, on CPU and CUDA tensors.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

Importing it patches nothing. docs/reference/python.md is the reference.
"""
import importlib
import os
import sys
from typing import Any

from ... import apex_shim
from ...apex import FOLDER
from . import lists, process_state
from ._casting import disable_casts
from .exempt import exempt
from .frontend import init, initialize, initialized, load_state_dict, shutdown, state_dict
from .fully_sharded import fsdp_policy
from .loss_scaling import scale, scale_loss, unscale
from .observing import culprit, memory, observations, observe, observe_stop
from .optimizer_wiring import stepped
from .process_state import master_params
from .registry import (
    bfloat16_function,
    float_function,
    half_function,
    promote_function,
    register_bfloat16_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from .report import explain, findings, health
from .surveys import survey

try:
    from .activations import compress_activations
except ModuleNotFoundError:

    def compress_activations(*_arguments: Any, **_named: Any) -> Any:  # type: ignore[misc]
        """Raises RuntimeError: this build of libamp has no compressed activations."""
        raise RuntimeError("amp.compress_activations is not in this build of libamp (-Dactivations=disabled)")


__version__ = "0.1.0"
__all__ = [
    "_amp_state",
    "_initialize",
    "amp",
    "bfloat16_function",
    "compat",
    "compress_activations",
    "culprit",
    "disable_casts",
    "doctor",
    "exempt",
    "explain",
    "findings",
    "float_function",
    "fsdp_policy",
    "half_function",
    "health",
    "init",
    "initialize",
    "initialized",
    "lists",
    "load_state_dict",
    "master_params",
    "memory",
    "observations",
    "observe",
    "observe_stop",
    "opt",
    "promote_function",
    "register_bfloat16_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "rnn_compat",
    "scale",
    "scale_loss",
    "shutdown",
    "state_dict",
    "stepped",
    "survey",
    "unscale",
    "utils",
]


_APEX = ("_initialize", "amp", "compat", "handle", "opt", "rnn_compat", "utils")  # modules in libamp/apex/amp
__path__.append(os.path.join(FOLDER, "amp"))
importlib.import_module("._amp_state", __name__)  # imported later, the module would take the place of the object
_amp_state = process_state._amp_state


def __getattr__(name: str) -> Any:
    if name in _APEX:
        return importlib.import_module(f".{name}", __name__)
    if name == "doctor":
        return importlib.import_module("..doctor", __name__).doctor
    if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":  # from apex.amp import wrap
        apex_shim.raise_missing(f"apex.amp.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
