# SPDX-License-Identifier: Apache-2.0
"""The data of the page's figures, bounded, as JSON. figures.js draws them."""

from __future__ import annotations

import json
import math
from typing import Any

from .facts import (
    BF16,
    FP16,
    SCALES,
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
from .verdict import Key

SHOTS = 60  # points of one line: more cannot be distinguished
POINTS = 1000  # points of the loss and of its scale
BYTES = 500_000  # of all histograms: the page stays below 1 MB


def as_json(value: object) -> str:
    """Returns JSON for an element <script>. No character of it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def thin(lines: list[Any], n: int) -> list[Any]:
    """Returns at most n of the lines, evenly spaced, with the last."""
    if len(lines) <= n:
        return lines
    if n < 2:
        return lines[-1:]
    step = (len(lines) - 1) / (n - 1)
    return [lines[round(i * step)] for i in range(n)]


# ---- the loss and its scale ----


def scale_of(training: Training) -> list[dict[str, Any]]:
    """Returns a line for each loss scale, with every skip if there is room, and the loss where the host gave it."""
    losses = []
    for loss in sorted({line["loss"] for line in training.brackets}):
        lines = [line for line in training.brackets if line["loss"] == loss]
        scaled = [line for line in lines if line.get("scale")]
        changes = [a for i, a in enumerate(scaled)
                   if i == 0 or scaled[i - 1]["scale"] != a["scale"] or i == len(scaled) - 1]  # fmt: skip
        skips = thin([line for line in scaled if line["action"] == "skip"], POINTS)
        values = thin([line for line in lines if "value" in line], POINTS)
        losses.append({
            "loss": loss,
            "n": [line["n"] for line in thin(changes, POINTS)],
            "scale": [line["scale"] for line in thin(changes, POINTS)],
            "skips": [[line["n"], line["scale"], line.get("overflow")] for line in skips],
            "values": [[line["n"], line["value"]] for line in values],
        })  # fmt: skip
    return losses


# ---- exponents ----


def shot_of(n: int, shots: list[Line]) -> list[Any]:
    """Returns [iteration, first exponent, counts from it on, elements, zeros, not finite] of the sum of shots."""
    first = min((shot["first"] for shot in shots if shot["binades"]), default=0)
    end = max((shot["first"] + len(shot["binades"]) for shot in shots if shot["binades"]), default=first)
    counts = [0] * (end - first)
    for shot in shots:
        for i, count in enumerate(shot["binades"], shot["first"] - first):
            counts[i] += count
    bad = sum(shot["nans"] + shot["plus_infinities"] + shot["minus_infinities"] for shot in shots)
    return [n, first, counts, sum(shot["elements"] for shot in shots), sum(shot["zeros"] for shot in shots), bad]


def subject_data(subject: Subject, shots: int) -> dict[str, Any]:
    return {
        "label": subject.label,
        "line": subject.line,
        "what": subject.what,
        "back": bool(subject.shots[-1].get("in_backward")),
        "key": json.dumps(subject.key),
        "type": subject.type,
        "all": shot_of(0, subject.shots),
        "shots": [shot_of(shot["n"], [shot]) for shot in thin(subject.shots, shots)] if shots else [],
    }


def bounded(per_run: list[list[Subject]]) -> tuple[list[list[dict[str, Any]]], int]:
    """Returns the data of the subjects of each run, with fewer iterations, then fewer subjects if they need too much
    room, and the number of those left out."""
    shots, most = SHOTS, max((len(subjects) for subjects in per_run), default=0)
    while True:
        data = [[subject_data(subject, shots) for subject in subjects[:most]] for subjects in per_run]
        if len(json.dumps(data)) <= BYTES or most < 2:
            return data, sum(max(len(subjects) - most, 0) for subjects in per_run)
        if shots > 1:
            shots //= 2
        else:
            most //= 2


def by_scale(subjects: list[Subject]) -> dict[str, Any] | None:
    binades = gradients_of(subjects)
    if not binades:
        return None
    at = [lost_at(binades, FP16, exponent) for exponent in SCALES]
    return {
        "numbers": sum(binades.values()),
        "zeros": [lost.zeros for lost in at],
        "subnormals": [lost.subnormals for lost in at],
        "infinities": [lost.infinities for lost in at],
        "best": best_scale(binades),
    }


def figures_of(names: list[str], trainings: list[Training], first: list[Key | None]) -> tuple[dict[str, Any], int]:
    """Returns the data of all figures, and the number of tensors without a histogram. first: the tensor to show first,
    by training."""
    runs, seen = [], []
    for training, key in zip(trainings, first):
        subjects = [s for s in subjects_of(training) if any(shot["binades"] for shot in s.shots) or s.nonfinite]
        seen.append(sorted(subjects, key=lambda s: s.key != key))  # stable
    shown, omitted = bounded(seen)
    for name, training, subjects, data in zip(names, trainings, seen, shown):
        scale = outline_of(training).scale
        runs.append({
            "name": name,
            "scale": scale_of(training),
            "last": math.log2(scale) if scale and scale > 0 else 0,
            "subjects": data,
            "byScale": by_scale(subjects),
        })  # fmt: skip
    wanted = next((key for key in first if key), None)
    return {
        "runs": runs,
        "windows": [vars(FP16), vars(BF16)],
        "scales": list(SCALES),
        "first": json.dumps(wanted) if wanted else None,
    }, omitted


# ---- text alternatives: the same in a sentence, for who does not see the figure ----


def scale_words(training: Training) -> str:
    outline = outline_of(training)
    scales = [line["scale"] for line in training.brackets if line.get("scale")]
    if not scales:
        return "No loss scale was recorded."
    ends = f"from {power(scales[0])} to {power(outline.scale)}"
    between = f", at least {power(min(scales))} and at most {power(max(scales))}"
    return f"Loss scale over {counted(outline.brackets, 'step')}: {ends}{between}; skipped: {outline.skipped}."


def loss_words(training: Training) -> str:
    told = [line for line in training.brackets if "value" in line]
    finite = [line["value"] for line in told if line["value"] is not None]
    if not finite:
        return f"Loss over {counted(len(told), 'step')}: none was finite."
    bad = len(told) - len(finite)
    return f"Loss over {counted(len(told), 'step')}: from {finite[0]:.4g} to {finite[-1]:.4g}" + (
        f"; {bad} were not finite." if bad else "."
    )


def by_scale_words(data: dict[str, Any] | None) -> str:
    if not data:
        return "No gradient was observed."
    of = data["numbers"]
    at = ", ".join(f"2^{k}: {share(data['zeros'][k], of)} become 0, {share(data['infinities'][k], of)} infinite"
                   for k in (0, 8, 16, 24))  # fmt: skip
    return f"Gradients in fp16 by loss scale: {at}. The greatest scale without an infinity is 2^{data['best']}."
