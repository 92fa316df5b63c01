# SPDX-License-Identifier: Apache-2.0
"""Ends a bracket when the loss scaler is on a served device. It follows src/scaler/rules.h line by line, with torch's
operators on the words of the structure (amp_served_scaler of amp_serve.h). It never reads from the device.
tests/test_served.py compares both."""
from __future__ import annotations

from typing import Any

import torch

from ._torch_ops.common import double_of

_WORDS = 24  # of 4 bytes: amp_served_scaler
_FLOATS = {
    "scale": 0, "next_scale": 1, "gave_up": 8, "found": 10, "inverse": 12, "left": 13, "found_inf": 14,
    "scale_before": 15,
}
_INTEGERS = {
    "unskipped": 2, "hysteresis_left": 3, "skips_in_row": 4, "first": 11, "action": 16, "given_up": 17,
    "first_nonfinite": 18,
}
_LONGS = {"clean_run": 3, "brackets": 10, "skipped": 11}  # words of 8 bytes
_SKIP = 1  # AMP_SKIP
_FIRST_INFINITE = 340282356779733661637539395458142568448.0  # halfway from the largest float to 2^128

_State = dict[str, Any]


class Words:
    """The members of the structure as zero-dimensional tensors."""

    def __init__(self, on: Any, address: int) -> None:
        floats, integers = on.floats(address, _WORDS), on.integers(address, _WORDS, 32)
        longs = on.integers(address, _WORDS // 2, 64)
        self.of: _State = {name: floats[at] for name, at in _FLOATS.items()}
        self.of.update({name: integers[at] for name, at in _INTEGERS.items()})
        self.of.update({name: longs[at] for name, at in _LONGS.items()})
        self.double = double_of(on.device)


# ---- the next scale ----


def _bounded(scale: Any, end: _State) -> Any:
    return scale.clamp(end["min_scale"], end["max_scale"]).float()


def _grown(scale: Any, end: _State, double: Any) -> Any:
    return _bounded(scale.to(double) * end["growth"], end)


def _grown_if_finite(scale: Any, end: _State, double: Any) -> Any:
    exact = scale.to(double) * end["growth"]
    return torch.where(exact < _FIRST_INFINITE, _bounded(exact, end), scale)


def _backed_off(scale: Any, end: _State, double: Any) -> Any:
    exact = scale.to(double)
    return _bounded(exact * end["backoff"] if end["backoff"] else exact / end["growth"], end)


# ---- one closed bracket: `s` has the members before it and receives those after it ----


def _count(s: _State, end: _State, found: Any, completes: Any) -> Any:
    """Updates hysteresis and window. Returns whether the scale backs off."""
    left = s["hysteresis_left"]
    backs_off = found & (left <= 1)
    clean = torch.full_like(left, end["hysteresis"]) if end["consecutive_hysteresis"] else left
    restarted = torch.where(completes, end["hysteresis"], clean)
    s["hysteresis_left"] = torch.where(found, torch.where(backs_off, left, left - 1), restarted)
    s["unskipped"] = torch.where(found | completes, 0, s["unskipped"] + 1)
    return backs_off


def _dynamic(s: _State, end: _State, found: Any, double: Any) -> None:
    rule = end["rule"]
    if rule == "deepspeed":
        stable = s["clean_run"]
        completes = ~found & (stable != 0) & (stable % end["window"] == 0)
        s["clean_run"] = torch.where(found, 0, stable + 1)
    else:
        completes = ~found & (s["unskipped"] + 1 >= end["window"])
    backs_off = _count(s, end, found, completes)
    scale = s["next_scale"] if rule == "mxnet" else s["scale"]
    grow = _grown_if_finite if rule == "torch" else _grown
    moved = torch.where(
        backs_off, _backed_off(scale, end, double), torch.where(completes, grow(scale, end, double), scale)
    )
    s["scale"], s["next_scale"] = (scale, moved) if rule == "mxnet" else (moved, moved)


def _update(s: _State, end: _State, found: Any, double: Any) -> Any:
    """Updates the scale. Returns whether the step is skipped."""
    skips = found
    if end["dynamic"]:
        _dynamic(s, end, found, double)
    else:
        skips = found if end["check_finite"] else found & (s["scale"] != 1.0)
        s["unskipped"] = torch.where(skips, 0, s["unskipped"] + 1)
    s["skips_in_row"] = torch.where(skips, s["skips_in_row"] + 1, 0)
    return skips


def _decide(s: _State, end: _State, found: Any, double: Any) -> Any:
    s["scale_before"] = s["scale"]
    skips = _update(s, end, found, double)
    s["action"] = skips.to(torch.int32) * _SKIP
    s["inverse"] = s["scale"].to(double).reciprocal().float()
    s["brackets"] = s["brackets"] + 1
    s["skipped"] = s["skipped"] + skips
    s["first_nonfinite"] = torch.where(found, s["first"], s["first_nonfinite"])
    return skips


def end_bracket(on: Any, end: _State) -> None:
    """Runs amp__rule_end and the skips of optimizers."""
    known: dict[int, Words] = on.scalers
    words = known.get(end["scaler"])
    if words is None:
        words = known[end["scaler"]] = Words(on, end["scaler"])
    of = words.of
    found = of["found"] != 0  # a NaN is not 0
    if end["found_elsewhere"]:
        found = torch.ones_like(found)
    of["found_inf"].copy_(found)
    of["left"].copy_(of["inverse"])
    if not end["decides"]:
        of["found"].copy_(found)
        return
    gave_up = of["gave_up"] != 0
    after = dict(of)
    skips = _decide(after, end, found, words.double) | gave_up
    changed = [name for name in of if after[name] is not of[name]]
    torch._foreach_copy_(
        [of[name] for name in changed],
        [torch.where(gave_up, of[name], after[name].to(of[name].dtype)) for name in changed],
    )
    of["given_up"].copy_(gave_up)
    of["found_inf"].masked_fill_(gave_up, 1.0)
    of["found"].zero_()
    of["gave_up"].zero_()
    of["first"].fill_(-1)
    for number in end["which"]:
        on.floats(end["skips"] + 4 * number).masked_fill_(skips, 1.0)
