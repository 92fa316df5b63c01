# SPDX-License-Identifier: Apache-2.0
"""The report for terminals."""

from __future__ import annotations

import re

from .compare import first_decision, partings
from .facts import (
    BF16,
    FP8_HEAD,
    FP16,
    MEMORY_HEAD,
    SCALES,
    Subject,
    best_scale,
    counted,
    fp8_answer,
    fp8_rows,
    gradients_of,
    lost_at,
    memory_rows,
    outline_of,
    power,
    share,
    size,
    subjects_of,
)
from .read import Line, Trace, Training
from .verdict import sentence, verdict_of

ROWS = 12  # rows of a table


def plain(text: str) -> str:
    """Returns the text without control characters."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match.group()):02x}", text)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [head, *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))]).rstrip()
        for row in cells
    ]


def more(rows: list[list[str]]) -> list[str]:
    return [f"  … and {len(rows) - ROWS} more"] if len(rows) > ROWS else []


def losses(subjects: list[Subject]) -> list[str]:
    """Returns the losses of a cast to fp16, largest first."""
    rows = []
    for subject in subjects:
        lost, numbers = subject.lost("fp16"), subject.numbers
        key = (lost.infinities + lost.zeros) / numbers if numbers else 0
        if subject.nonfinite or lost.infinities or lost.zeros:
            rows.append((subject.nonfinite == 0, -key, subject))
    rows.sort(key=lambda row: row[:2])
    cells = [
        [
            s.label,
            s.type,
            str(s.nonfinite),
            share(s.lost("fp16").infinities, s.numbers),
            share(s.lost("fp16").zeros, s.numbers),
            share(s.lost("bf16").zeros, s.numbers),
            power(s.largest),
        ]
        for _, _, s in rows
    ]
    if not cells:
        return ["Nothing that was observed would be lost by a cast to fp16.", ""] if subjects else []
    head = ["lost by a cast", "type", "inf, NaN", "fp16 inf", "fp16 to 0", "bf16 to 0", "largest"]
    return [*table(head, cells[:ROWS]), *more(cells), ""]


def fp8(training: Training) -> list[str]:
    """Returns the losses of a dry run in FP8."""
    rows = fp8_rows(training)
    if not rows:
        return []
    cells = [row.cells for row in rows]
    return [*table(FP8_HEAD, cells[:ROWS]), *more(cells), plain(f"  FP8: {fp8_answer(rows)}"), ""]


def scales(subjects: list[Subject]) -> list[str]:
    binades = gradients_of(subjects)
    best = best_scale(binades)
    if best is None:
        return []
    numbers = sum(binades.values())
    rows = []
    for exponent in SCALES[::4]:
        at = lost_at(binades, FP16, exponent)
        rows.append(
            [f"2^{exponent}", share(at.zeros, numbers), share(at.subnormals, numbers), share(at.infinities, numbers)]
        )
    bf16 = lost_at(binades, BF16, 0)
    return [
        *table(["gradients in fp16 at scale", "to 0", "subnormal", "infinite"], rows),
        f"  the greatest scale without an infinite one: 2^{best}; in bf16 at 1: {share(bf16.zeros, numbers)} to 0",
        "",
    ]


def updates(subjects: list[Subject]) -> list[str]:
    rows = []
    for s in subjects:
        if s.what == "update" and (s.total("lost_fp16") or s.total("lost_bf16")):
            rows.append([s.name, share(s.total("lost_fp16"), s.numbers), share(s.total("lost_bf16"), s.numbers)])
    return (
        [*table(["updates a weight would not show", "in fp16", "in bf16"], rows[:ROWS]), *more(rows), ""]
        if rows
        else []
    )


def arguments(line: Line) -> list[str]:
    def number(argument: Line, name: str) -> str:
        value = argument.get(name)
        return power(value) if isinstance(value, (int, float)) else "-"

    return [
        plain(
            f"      {'made' if argument.get('output') else 'got'} {argument['name']} ({argument.get('type')}): "
            f"{argument.get('nonfinite')} of {argument.get('elements')} not finite, "
            f"else {number(argument, 'least')} to {number(argument, 'largest')}"
        )
        for argument in line["arguments"]
    ]


def where(line: Line) -> str:
    """Describes a culprit in a sentence."""
    cause = line.get("cause")
    if cause == "weight":
        least, since = line.get("since_least"), line.get("since")
        when = f"bracket {since}" if least == since else f"one of the brackets {least} to {since}"
        text = f"the parameter {line.get('weight')} itself is not finite since {when}"
    elif line.get("op") is None:
        text = "no op was seen to begin it"
    else:
        op = f"{line['op']}#{line['index'] + 1}" if line["index"] else line["op"]
        text = f"{'backward of ' if line.get('in_backward') else ''}{op}, call {line['call']} of the iteration"
        text += ", by the cast of its input" if line.get("was_cast") else ""
        if cause == "input":
            text += ". Its input was not finite: the batch, a constant, or an op that libamp does not see"
    return text + (f"; first gradient: {line['parameter']}" if line.get("parameter") else "")


def each_once(culprits: list[Line]) -> list[tuple[Line, str]]:
    """Returns the first of equal culprits, and text for the others."""
    alike: dict[tuple[object, ...], list[Line]] = {}
    for line in culprits:
        key = [line.get(name) for name in ("op", "index", "parameter", "cause", "was_cast", "weight")]
        alike.setdefault(tuple(key), []).append(line)
    return [(first, f"; the same in {len(others)} more" if others else "") for first, *others in alike.values()]


def culprits(training: Training) -> list[str]:
    lines = []
    for line, others in each_once(training.culprits)[-ROWS:]:
        lines += [plain(f"  bracket {line['n']}: {where(line)}{others}"), *arguments(line)]
    return ["Overflows that were observed, where they began", *lines, ""] if lines else []


def ops(training: Training) -> list[str]:
    used = sorted((op for op in training.ops if op["calls"]), key=lambda op: -op["calls"])
    rows = [
        [
            f"{op['name']}#{op['index'] + 1}" if op["index"] else op["name"],
            op["class"],
            *(str(op[name]) for name in ("calls", "passed", "casts", "cache_hits", "failures")),
        ]
        for op in used
    ]
    head = ["op", "class", "calls", "as they came", "casts", "cache hits", "failures"]
    return [*table(head, rows[:ROWS]), *more(rows), ""] if rows else []


def told(training: Training) -> list[str]:
    lines = [line for line in training.told if line["as"] != "note"]
    texts = [f"  {line['as']}, bracket {line['n']}: {line['message']}" for line in lines]
    return ["Told", *map(plain, texts), ""] if texts else []


FITS = ("no", "yes", "yes, with ops in FP32")


def survey_rows(training: Training) -> list[list[str]]:
    return [
        [
            level["level"],
            FITS[min(level["fits"], 2)],
            str(level["advice"]),
            *(size(level[name]) for name in ("weights", "gradients", "masters", "outputs")),
        ]
        for level in (training.survey or {"levels": []})["levels"]
    ]


SURVEY_HEAD = ["level", "fits", "advice", "weights", "gradients", "masters", "outputs of ops"]


def advised(training: Training) -> str:
    survey = training.survey
    if not survey:
        return ""
    scale = f", initial loss scale {power(survey['init_scale'])}" if survey["level"] in ("O1", "O2") else ""
    return f"{survey['level']}{scale}"


def survey(training: Training) -> list[str]:
    if not training.survey:
        return []
    lines = [f"  {advice['message']} [{' '.join(advice['levels'])}]" for advice in training.advice]
    return [
        *table(SURVEY_HEAD, survey_rows(training)),
        *map(plain, lines),
        plain(f"  advised: {advised(training)}"),
        "",
    ]


def memory(training: Training) -> list[str]:
    rows = memory_rows(training)
    return [*table(["memory", *MEMORY_HEAD], rows), ""] if rows else []


def training_lines(training: Training) -> list[str]:
    outline, subjects = outline_of(training), subjects_of(training)
    percent = share(outline.skipped, outline.brackets)
    return [
        plain(sentence(verdict_of(training))),
        plain(f"{outline.level} ({outline.type}): {counted(outline.brackets, 'bracket')}, ")
        + plain(f"{outline.skipped} skipped ({percent}), ")
        + f"loss scale at last {power(outline.scale)}, {counted(outline.observed, 'iteration')} observed",
        "",
        *told(training),
        *survey(training),
        *culprits(training),
        *losses(subjects),
        *fp8(training),
        *scales(subjects),
        *updates(subjects),
        *ops(training),
        *memory(training),
    ]


def comparison(a: Training, b: Training) -> list[str]:
    found, count = partings(a, b)
    lines = [f"Where they part (observed in both: {counted(count, 'thing')})"]
    decision = first_decision(a, b)
    if decision:
        lines.append(f"  bracket {decision.n}: {decision.label}: {decision.how}")
    lines += [plain(f"  bracket {p.n}: {p.label}: {p.how}") for p in found[:ROWS]]
    lines += [f"  … and {len(found) - ROWS} more"] if len(found) > ROWS else []
    return [*lines, "  nowhere"] if len(lines) == 1 else lines


def report(chosen: list[tuple[Trace, Training]]) -> str:
    lines: list[str] = []
    for trace, training in chosen:
        lines += [plain(f"{trace.name}, context {training.context}"), *training_lines(training)]
        lines += [plain(f"{trace.name}: {problem}") for problem in trace.problems]
    if len(chosen) == 2:
        lines += ["", *comparison(chosen[0][1], chosen[1][1])]
    return "\n".join(lines).rstrip() + "\n"
