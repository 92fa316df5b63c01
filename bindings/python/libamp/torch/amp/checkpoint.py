# SPDX-License-Identifier: Apache-2.0
"""state_dict and load_state_dict: the scalers, in Apex's form. All else is where torch keeps it: the model's state_dict
has the FP32 values (the masters' where there are masters), the optimizer's its FP32 state. So a resumed run is the
uninterrupted one, whatever is loaded first."""
from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from .process_state import maybe_print
from .scaler import read_states, write_states
from .session import Session, last


def state_dict(destination: Any = None) -> Any:
    """OrderedDict of {"loss_scaler0": {"loss_scale": ..., "unskipped": ...}, ...}; empty where amp is off."""
    return state_of(last(), OrderedDict() if destination is None else destination)


def state_of(session: Session | None, destination: Any) -> Any:
    """The scalers of one initialize."""
    if session is not None:
        states = read_states(session.context)
        for scaler, (name, state) in zip(session.scalers, states.items(), strict=True):
            destination[name] = {"loss_scale": state["loss_scale"], "unskipped": scaler.shown(state["unskipped"])}
    return destination


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Takes scalers by their order. Other keys are a RuntimeError, after the rest was applied."""
    load_into(last(), state_dict)


def load_into(session: Session | None, state_dict: Mapping[str, Any]) -> None:
    """load_state_dict for one initialize."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"load_state_dict: the state is a dict as amp.state_dict() gives it, not a {type(state_dict).__name__}"
        )
    scalers = [(key, value) for key, value in state_dict.items() if "loss_scaler" in key]
    unexpected = [key for key in state_dict if "loss_scaler" not in key]
    if session is not None:
        states = read_states(session.context)
        if len(scalers) != len(states):
            maybe_print(f"Warning: the state has {len(scalers)} loss scalers, and {len(states)} are in use")
        for index, (key, value) in enumerate(scalers):
            if index >= len(states):
                maybe_print(f"loss_scaler{index} and those behind it are passed over: num_losses is {len(states)}")
                break
            state = states[f"loss_scaler{index}"] = _scaler_of(key, value)
            state["unskipped"] += session.scalers[index]._ahead
        write_states(session.context, states)
    if unexpected:
        raise RuntimeError(
            "keys that are no loss scaler's, after the scalers were "
            "loaded: " + ", ".join(f'"{key}"' for key in unexpected)
        )


def _scaler_of(key: str, value: Any) -> dict[str, Any]:
    try:
        scale, unskipped = float(value["loss_scale"]), int(value["unskipped"])
    except (KeyError, TypeError, ValueError):
        form = '{"loss_scale": a number, "unskipped": a count}'
        raise ValueError(f"load_state_dict: {key} is {value!r}, and must be {form}") from None
    if not math.isfinite(scale):
        raise ValueError(f"load_state_dict: {key}: loss_scale is {scale}, and must be finite")
    return {"loss_scale": scale, "unskipped": unskipped}
