# SPDX-License-Identifier: Apache-2.0
"""amp.survey: the fit of each level for the observed training, and the buffers that 16 bits ruin."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import _html
from ..._words import counted
from . import buffer_rounding, state_memory
from .observing import Memory, session_of
from .session import Session


class Advice(NamedTuple):
    """One piece of advice. code: see docs/guide/choose-a-level.md. levels: the levels that it applies to."""

    code: str
    op: str | None
    name: str | None
    levels: tuple[str, ...]
    elements: int
    of: int
    largest: float
    message: str


class Level(NamedTuple):
    """The verdict for one level. fits: "yes", "with ops in fp32" or "no"."""

    fits: str
    n_advice: int
    memory: Memory


class Losses(NamedTuple):
    """Nonzero elements that a cast to an FP8 format changes: to 0, to subnormals, in blocks to its largest number."""

    zeros: int
    subnormals: int
    saturated: int


class FP8Input(NamedTuple):
    """A dry run of FP8 for an input of a product, as amp_fp8_input of amp_observe.h defines it. stays: the product
    would have to stay in 16 bits. e4m3, e5m2: of `numbers` nonzero elements. e4m3_blocks, e5m2_blocks: MXFP8's, of
    block_numbers."""

    op: str
    name: str
    in_backward: bool
    stays: bool
    numbers: int
    e4m3: Losses
    e5m2: Losses
    block_numbers: int
    e4m3_blocks: Losses
    e5m2_blocks: Losses


class Survey(NamedTuple):
    """The fit of each level for the observed training. str() gives a report for people."""

    level: str
    init_scale: float
    iterations: int
    advice: list[Advice]
    levels: list[Level]
    text: str
    fp8: list[FP8Input]

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        head = ("level", "fits", "advice", "weights", "gradients", "masters", "outputs of ops")
        rows = []
        for fits, n_advice, memory in self.levels:
            taken = map(_html.size, (memory.weights, memory.gradients, memory.masters, memory.outputs))
            rows.append((memory.level, fits, n_advice, *taken))
        told = [(each.code, " ".join(each.levels), each.message) for each in self.advice]
        of = counted(self.iterations, "iteration")
        title = f"survey of {of}; advised: {self.level}, init_scale {self.init_scale:g}"
        shown = _html.table(title, head, rows) + _html.table("", ("code", "levels", "advice"), told)
        return shown + (_html.table("FP8, as a dry run", _FP8_HEAD, map(_fp8_row, self.fp8)) if self.fp8 else "")


_FP8_HEAD = ("op", "input", "E4M3 to 0", "E5M2 to 0", "MXFP8 E4M3 to 0", "MXFP8 E5M2 to 0", "")


def _fp8_row(each: FP8Input) -> tuple[str, ...]:
    def share(losses: Losses, of: int) -> str:
        return f"{100 * losses.zeros / of:.3g} %" if of else "-"

    whole = [share(losses, each.numbers) for losses in (each.e4m3, each.e5m2)]
    blocks = [share(losses, each.block_numbers) for losses in (each.e4m3_blocks, each.e5m2_blocks)]
    return each.op, each.name, *whole, *blocks, "stays" if each.stays else "fits"


def _survey_of(session: Session) -> Survey:
    state_memory.report(session)
    level, init_scale, iterations, advice, surveyed, fp8, text = session.context.survey()
    listed = [Advice(code, op, name, tuple(names), *rest) for code, op, name, names, *rest in advice]
    fits = {0: "no", 1: "yes", 2: "with ops in fp32"}
    described = [Level(fits[each], n, Memory(*taken)) for each, n, taken in surveyed]
    found = buffer_rounding.by_level(session.present_models())
    for damaged in found:
        message = f"buffer {damaged.name}: {damaged.words}"
        listed.append(
            Advice(buffer_rounding.CODE, None, damaged.name, damaged.levels, damaged.size, damaged.size, 0.0, message)
        )
    dry = [
        FP8Input(op, name, backward, stays, numbers, Losses(*a), Losses(*b), sampled, Losses(*c), Losses(*d))
        for op, name, backward, stays, numbers, a, b, sampled, c, d in fp8
    ]
    return Survey(level, init_scale, iterations, listed, described, text + buffer_rounding.text_of(found), dry)


def survey(of: Any = None) -> Survey:
    """Returns the fit of each level for this training, from the records of amp.observe and the values of
    buffers. Run some iterations first, best at O0 with every=1."""
    return _survey_of(session_of(of, "survey"))
