# SPDX-License-Identifier: Apache-2.0
"""The verdict on a training in one sentence, with what to do, in the words of the host's language."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from .facts import (
    FP16,
    Outline,
    Subject,
    best_scale,
    counted,
    gradients_of,
    lost_at,
    outline_of,
    power,
    share,
    subjects_of,
)
from .read import Line, Training

PART = 20  # one gradient in so many may become 0: fewer are noise beside the batch's own
FEW = 4  # steps that say nothing about a scale that is still falling
LARGEST = {"fp16": "65504", "bf16": "3.39e38"}  # finite numbers

Key = tuple[str, "str | None", int, str]


class Words(NamedTuple):
    """Names of the host's language."""

    bracket: str
    brackets: str
    keep: str  # keeps an op in FP32
    masters: str
    init_scale: str
    report: str


HOSTS = {
    "c": Words("bracket", "brackets", 'amp_register(&model, "{op}", AMP_FP32)', "amp_config.master_weights = AMP_ON",
               "amp_config.init_scale", "amp_health"),
    "python": Words("block of amp.scale_loss", "blocks of amp.scale_loss",
                    'amp.exempt(model.get_submodule("{where}"), cast_inputs=torch.float32)', "master_weights=True",
                    "init_scale of amp.initialize", "amp.health()"),
}  # fmt: skip


def words_of(training: Training) -> Words:
    return HOSTS["python" if is_python(training) else "c"]


def is_python(training: Training) -> bool:
    return (training.wired or {}).get("language") == "python"


@dataclass
class Verdict:
    """kind: "bad", "fair" or "good". culprit: the first overflow's. subject: key of the tensor to look at first."""

    kind: str
    text: str
    remedy: str = ""
    culprit: Line | None = None
    subject: Key | None = None


# ---- the culprit in words ----


def op_words(op: str, index: int, line: str | None) -> str:
    """Returns "blocks.1.fc2 (linear, model.py:41)": the module first, if the host named one."""
    where, _, name = op.rpartition(": ")
    number = f"#{index + 1}" if index else ""
    about = [part for part in ((name if where else "") + (number if where else ""), line) if part]
    return (where or name + number) + (f" ({', '.join(about)})" if about else "")


def largest_of(line: Line, outputs: bool) -> float:
    numbers = [a.get("largest") or 0.0 for a in line["arguments"] if bool(a.get("output")) == outputs]
    return max(numbers, default=0.0)


def before_the_cast(line: Line, training: Training) -> float:
    """Returns the largest value that the cast before this call got, 0 if no cast was observed."""
    casts = [call for call in training.calls if call["n"] == line["n"] and call["call"] <= line["call"]]
    for call in reversed(casts):
        got = [a for a in call["arguments"] if not a.get("output")]
        if call["op"] == "cast" and any(a["nonfinite"] for a in call["arguments"] if a.get("output")):
            return max((a.get("largest") or 0.0 for a in got if not a["nonfinite"]), default=0.0)
    return 0.0


def made_by(line: Line, training: Training, type_name: str) -> str:
    """Says what happened in the op."""
    most = LARGEST.get(type_name, "its type")
    if line.get("in_backward") and not line["arguments"]:
        return f"its backward made a gradient that is not finite (parameter {line.get('parameter')})"
    if line.get("was_cast") or line.get("cause") == "cast":
        largest = before_the_cast(line, training)
        return f"got values {f'up to {power(largest)}' if largest else 'above ' + most}, more than {type_name} holds"
    if line.get("cause") == "input":
        return "got values that were not finite already"
    bad = sum(a["nonfinite"] for a in line["arguments"] if a.get("output"))
    of = sum(a["elements"] for a in line["arguments"] if a.get("output"))
    made = f"{bad} of {of} results" if of else "results"
    largest = largest_of(line, outputs=False)
    return f"made {made} infinite or NaN from values up to {power(largest)} ({type_name} holds {most})"


def culprit_words(line: Line, training: Training) -> str:
    type_name = (training.start or {}).get("type", "?")
    if line.get("cause") == "weight":
        return f"the parameter {line.get('weight')} itself is not finite since step {line.get('since')}"
    if line.get("op") is None:
        first = f"; the first gradient is that of {line['parameter']}" if line.get("parameter") else ""
        return f"no observed op made the overflow{first}"
    return f"{op_words(line['op'], line['index'], line.get('line'))} {made_by(line, training, type_name)}"


# Ops that are the whole forward of a module: the module can be exempt.
OF_A_MODULE = ("linear", "bilinear", "conv", "batch_norm", "layer_norm", "group_norm", "rms_norm", "embedding")


def keep_in_fp32(line: Line, training: Training) -> str:
    level, words = (training.start or {}).get("level", "?"), words_of(training)
    where, _, name = line["op"].removesuffix(" (backward)").rpartition(": ")
    if (training.start or {}).get("type") == "bf16":
        return "bfloat16 has FP32's range: change the formula"
    if is_python(training) and not (name.startswith(OF_A_MODULE) and where[:1].islower()):
        at = f" ({line['line']})" if line.get("line") else ""
        return f"keep it in FP32: .float() on its inputs{at}, or use bfloat16 ({'O4' if level == 'O1' else 'O5'})"
    call = words.keep.format(op=name, where=where)
    if level in ("O1", "O4"):
        return f"keep it in FP32: {call}, or use bfloat16 (O4)"
    return f"use bfloat16 (O5), or O1 and keep it in FP32: {call}"


def remedy_of(line: Line, training: Training) -> str:
    cause = line.get("cause")
    if cause == "weight":
        return "load the last good checkpoint, and find the step on gradients that were not finite before it"
    if cause == "input":
        return "check the batch, then constants, then code that libamp does not see"
    if line.get("op") is None:
        return "observe every op: AMP_OBSERVE=every=1"
    return keep_in_fp32(line, training)


def key_of(line: Line, subjects: list[Subject]) -> Key | None:
    """Returns the key of the argument that shows the overflow best: a result that is not finite, else the input with
    the largest values."""
    if line.get("op") is None:
        return None
    have = {subject.key for subject in subjects}

    def rank(argument: Line) -> tuple[bool, bool, float]:
        return bool(argument["nonfinite"]), not argument.get("output"), argument.get("largest") or 0.0

    for argument in sorted(line["arguments"], key=rank, reverse=True):
        key = ("output" if argument.get("output") else "input", line["op"], line["index"], argument["name"])
        if key in have:
            return key
    return None


# ---- the verdict ----


def skips(training: Training, outline: Outline, subjects: list[Subject]) -> Verdict | None:
    """Most steps were skipped."""
    if outline.skipped < FEW or 2 * outline.skipped < outline.brackets:
        return None
    how = f"{outline.skipped} of {outline.brackets} steps were skipped"
    named = [line for line in training.culprits if line.get("op") or line.get("cause") == "weight"]
    if not named:
        text = f"{how}: the gradients were not finite, and no op was observed that made them so"
        return Verdict("bad", text, "AMP_OBSERVE=every=1 names the op", next(iter(training.culprits), None))
    alike = Counter((line.get("op"), line["index"], line.get("weight")) for line in named)
    worst = alike.most_common(1)[0][0]
    line = next(line for line in named if (line.get("op"), line["index"], line.get("weight")) == worst)
    text = culprit_words(line, training)
    return Verdict("bad", f"{how}: {text}", remedy_of(line, training), line, key_of(line, subjects))


def findings(training: Training) -> Verdict | None:
    """libamp found a mistake: the first of its messages."""
    found = [line for line in training.told if line.get("code") or line["as"] == "error"]
    if not found:
        return None
    first = next((line for line in found if line["as"] == "error"), found[0])
    codes = list(dict.fromkeys(line["code"] for line in found if line.get("code")))
    others = [code for code in codes if code != first.get("code")]
    more = f"also found: {', '.join(others)}" if others else ""
    return Verdict("bad" if first["as"] == "error" else "fair", first["message"].rstrip("."), more)


def losses(training: Training) -> Verdict | None:
    """The loss at the end is not finite."""
    told = [line for line in training.brackets if "value" in line]
    if not told or told[-1]["value"] is not None:
        return None
    since = told[-1]["n"]
    for line in reversed(told):
        if line["value"] is not None:
            break
        since = line["n"]
    return Verdict("bad", f"the loss is not finite from step {since} on, and no step was skipped for it",
                   "AMP_OBSERVE=every=1 names the op")  # fmt: skip


def updates(training: Training, subjects: list[Subject], words: Words) -> Verdict | None:
    """Weights in 16 bits without masters, and steps too small for them."""
    wired, type_name = training.wired or {}, (training.start or {}).get("type")
    if not wired.get("low") or wired.get("masters") or type_name not in ("fp16", "bf16"):
        return None
    rows = [s for s in subjects if s.what == "update" and s.numbers]
    lost, numbers = sum(s.total(f"lost_{type_name}") for s in rows), sum(s.numbers for s in rows)
    if not numbers or 10 * lost < numbers:
        return None
    worst = max(rows, key=lambda s: s.total(f"lost_{type_name}") / s.numbers)
    of_worst = share(worst.total(f"lost_{type_name}"), worst.numbers)
    text = f"{share(lost, numbers)} of the updates change nothing in {type_name} weights ({worst.name}: {of_worst})"
    return Verdict("fair", text, f"keep FP32 masters: {words.masters}, or O2, O5, O1, O4", None, worst.key)


def underflow(outline: Outline, subjects: list[Subject]) -> Verdict | None:
    """Gradients that are 0 in fp16 at the scale."""
    binades = gradients_of(subjects)
    if outline.type != "fp16" or not binades or not outline.scale:
        return None
    numbers, lost = sum(binades.values()), lost_at(binades, FP16, exponent_of(outline.scale))
    if PART * lost.zeros < numbers:
        return None
    best = best_scale(binades)
    return Verdict("fair", f"{share(lost.zeros, numbers)} of the gradients are 0 in fp16 at the loss scale "
                   f"{power(outline.scale)}", f"raise it, to {power(2.0**best)} at most, or use bfloat16 (O4, O5)"
                   if best is not None and best > exponent_of(outline.scale) else "use bfloat16 (O4, O5)")  # fmt: skip


def exponent_of(scale: float) -> int:
    return math.frexp(scale)[1] - 1


def well(training: Training, outline: Outline, subjects: list[Subject]) -> Verdict:
    told = [line["value"] for line in training.brackets if line.get("value") is not None]
    parts = [f"no finding in {counted(outline.brackets, 'step')}, {outline.skipped} skipped"]
    if len(told) > 1:
        parts.append(f"the loss went from {told[0]:.4g} to {told[-1]:.4g}")
    binades, best = gradients_of(subjects), best_scale(gradients_of(subjects))
    if outline.type == "fp16" and best is not None and outline.scale:
        spare = best - exponent_of(outline.scale)
        zeros = lost_at(binades, FP16, exponent_of(outline.scale)).zeros
        parts.append(
            f"gradients fit fp16 at {power(outline.scale)}"
            + (f", with a factor of {power(2.0**spare)} to spare" if spare > 0 else "")
            + (f"; {share(zeros, sum(binades.values()))} of them are 0" if zeros else "")
        )
    if not outline.observed:
        return Verdict("good", "; ".join(parts), "no number was observed: AMP_OBSERVE=1 beside AMP_TRACE shows more")
    return Verdict("good", "; ".join(parts))


def verdict_of(training: Training) -> Verdict:
    subjects, outline, words = subjects_of(training), outline_of(training), words_of(training)
    found = (
        skips(training, outline, subjects)
        or losses(training)
        or findings(training)
        or updates(training, subjects, words)
        or underflow(outline, subjects)
        or well(training, outline, subjects)
    )
    if found.culprit is None and training.culprits:
        found.culprit = training.culprits[0]
    return found


def sentence(found: Verdict) -> str:
    """Returns the verdict with the remedy: one line."""
    text = found.text[:1].upper() + found.text[1:]
    return f"{text}; {found.remedy}." if found.remedy else f"{text}."
