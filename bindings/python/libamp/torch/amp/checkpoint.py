# SPDX-License-Identifier: Apache-2.0
"""Loss scalers in checkpoints, in Apex's form. The model's state_dict has the FP32 values (of the masters where there
are some), the optimizer's has its FP32 state. A resumed run equals the uninterrupted one, in any order of loading."""
from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ..._words import counted
from . import product_rules
from .process_state import maybe_print
from .scaler import read_states, write_states
from .session import Session, last


def state_dict(destination: Any = None) -> Any:
    """Returns the scalers of the last initialize: {"loss_scaler0": {"loss_scale": ..., "unskipped": ...}, ...}. Empty
    where amp is off. destination: a dict to fill. The format is Apex's. With gate="measure" also the measured answers,
    under "gate"."""
    return state_of(last(), OrderedDict() if destination is None else destination)


def state_of(session: Session | None, destination: Any) -> Any:
    """Returns the scalers of one session in `destination`."""
    if session is not None:
        states = read_states(session.context)
        for scaler, (name, state) in zip(session.scalers, states.items(), strict=True):
            destination[name] = {"loss_scale": state["loss_scale"], "unskipped": scaler.shown(state["unskipped"])}
        if session.gate == "measure":
            destination["gate"] = product_rules.measured()
    return destination


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Loads scalers, in their order, into the last initialize. Raises TypeError if the state is no dict, ValueError for
    a wrong value, RuntimeError for other keys after the scalers were loaded. The format is Apex's."""
    load_into(last(), state_dict)


def load_into(session: Session | None, state_dict: Mapping[str, Any]) -> None:
    """Loads scalers as load_state_dict does, into one session."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"load_state_dict: the state is a dict as amp.state_dict() gives it, not a {type(state_dict).__name__}"
        )
    scalers = [(key, value) for key, value in state_dict.items() if "loss_scaler" in key]
    unexpected = [key for key in state_dict if "loss_scaler" not in key and key != "gate"]
    answers = _answers_of(state_dict.get("gate", {}))
    if session is not None:
        states = read_states(session.context)
        if len(scalers) != len(states):
            maybe_print(f"Warning: the state has {counted(len(scalers), 'loss scaler')}, and in use are {len(states)}")
        for index, (key, value) in enumerate(scalers):
            if index >= len(states):
                maybe_print(f"loss_scaler{index} and those behind it are passed over: num_losses is {len(states)}")
                break
            state = states[f"loss_scaler{index}"] = _scaler_of(key, value)
            state["unskipped"] += session.scalers[index]._ahead
        write_states(session.context, states)
        if answers:
            _load_gate(session, answers)
    if unexpected:
        raise RuntimeError(
            "keys that are no loss scaler's, after the scalers were "
            "loaded: " + ", ".join(f'"{key}"' for key in unexpected)
        )


def _answers_of(value: Any) -> dict[str, bool]:
    if not isinstance(value, Mapping) or not all(isinstance(answer, bool) for answer in value.values()):
        raise ValueError(f"load_state_dict: gate is {value!r}, and must be a dict of bools")
    return {str(name): answer for name, answer in value.items()}


def _load_gate(session: Session, answers: dict[str, bool]) -> None:
    """Adopts the answers of the run that the checkpoint is from, so that the resumed run is the same."""
    if session.gate != "measure":
        maybe_print(
            f'Warning: the state has answers of gate="measure", which gate="{session.gate}" does not use',
            True,
        )
    elif product_rules.adopt(answers, "the checkpoint's run") and "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()  # graphs have the old answers


def _scaler_of(key: str, value: Any) -> dict[str, Any]:
    try:
        scale, unskipped = float(value["loss_scale"]), int(value["unskipped"])
    except (KeyError, TypeError, ValueError):
        form = '{"loss_scale": a number, "unskipped": a count}'
        raise ValueError(f"load_state_dict: {key} is {value!r}, and must be {form}") from None
    if not math.isfinite(scale):
        raise ValueError(f"load_state_dict: {key}: loss_scale is {scale}, and must be finite")
    return {"loss_scale": scale, "unskipped": unskipped}
