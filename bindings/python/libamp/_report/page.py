# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page that needs no network: the numbers as JSON, and Plotly's script, which draws them."""

from __future__ import annotations

import html
import json
import math
from importlib import resources
from typing import Any

from .compare import first_decision, partings
from .facts import (
    BF16,
    FP16,
    MEMORY_HEAD,
    SCALES,
    Subject,
    best_scale,
    gradients_of,
    lost_at,
    memory_rows,
    outline_of,
    power,
    share,
    subjects_of,
)
from .read import Line, Trace, Training
from .text import SURVEY_HEAD, advised, each_once, survey_rows, where

SHOTS = 60  # points of one line: more cannot be distinguished
POINTS = 4000  # points of the loss scale


class Missing(Exception):
    """Plotly is not installed. The text names the package."""


def script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise Missing("the page needs Plotly: pip install plotly") from None
    return str(get_plotlyjs())


def own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def as_json(value: object) -> str:
    """Returns JSON for an element <script>. No character of it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ---- data of the figures ----


def thin(lines: list[Line], n: int) -> list[Line]:
    """Returns at most n of the lines, evenly spaced, with the last."""
    if len(lines) <= n:
        return lines
    step = (len(lines) - 1) / (n - 1)
    return [lines[round(i * step)] for i in range(n)]


def scale_of(training: Training) -> list[dict[str, Any]]:
    """Returns a line for each loss scale, with every skip if there is room."""
    losses = []
    for loss in sorted({line["loss"] for line in training.brackets}):
        lines = [line for line in training.brackets if line["loss"] == loss and line.get("scale")]
        changes = [
            a for i, a in enumerate(lines) if i == 0 or lines[i - 1]["scale"] != a["scale"] or i == len(lines) - 1
        ]
        skips = thin([line for line in lines if line["action"] == "skip"], POINTS)
        losses.append(
            {
                "loss": loss,
                "n": [line["n"] for line in thin(changes, POINTS)],
                "scale": [line["scale"] for line in thin(changes, POINTS)],
                "skips": [[line["n"], line["scale"], line.get("overflow")] for line in skips],
            }
        )
    return losses


def subject_data(subject: Subject) -> dict[str, Any]:
    return {
        "label": subject.label,
        "what": subject.what,
        "key": json.dumps(subject.key),
        "type": subject.type,
        "shots": [
            [
                shot["n"],
                shot["first"],
                shot["binades"],
                shot["elements"],
                shot["zeros"],
                shot["nans"] + shot["plus_infinities"] + shot["minus_infinities"],
            ]
            for shot in thin(subject.shots, SHOTS)
        ],
    }


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


def run_data(name: str, training: Training) -> dict[str, Any]:
    subjects, outline = subjects_of(training), outline_of(training)
    scale = outline.scale
    return {
        "name": name,
        "scale": scale_of(training),
        "last": math.log2(scale) if scale and scale > 0 else 0,
        "subjects": [subject_data(subject) for subject in subjects if any(shot["binades"] for shot in subject.shots)],
        "byScale": by_scale(subjects),
    }


# ---- text of the page ----


def e(value: object) -> str:
    return html.escape(str(value))


def table(head: list[str], rows: list[list[str]], caption: str = "") -> str:
    if not rows:
        return ""
    words = [any(row[i][:1].isalpha() for row in rows) for i in range(len(head))]
    kinds = [" class=word" if is_word else "" for is_word in words]
    cells = "".join(
        "<tr>" + "".join(f"<td{kind}>{e(cell)}</td>" for kind, cell in zip(kinds, row)) + "</tr>" for row in rows
    )
    named = f"<caption>{e(caption)}</caption>" if caption else ""
    heads = "".join(f"<th scope=col{kind}>{e(name)}</th>" for kind, name in zip(kinds, head))
    return f"<div class=wide><table>{named}<thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>"


def section(title: str, about: str, body: str) -> str:
    return f"<section><h2>{e(title)}</h2><p>{about}</p>{body}</section>" if body else ""


def figure(name: str) -> str:
    return f'<div class=figure id="{name}"></div>'


def tiles(training: Training) -> str:
    outline = outline_of(training)
    codes = sorted({line["code"] for line in training.told if line.get("code")})
    facts = [
        ("level", f"{outline.level}, {outline.type}"),
        ("brackets", f"{outline.brackets}"),
        ("skipped", f"{outline.skipped} ({share(outline.skipped, outline.brackets)})"),
        ("loss scale at last", power(outline.scale)),
        ("iterations observed", f"{outline.observed}"),
        ("findings", ", ".join(codes) if codes else "none"),
    ]
    return "<dl>" + "".join(f"<div><dt>{e(name)}</dt><dd>{e(value)}</dd></div>" for name, value in facts) + "</dl>"


def losses(training: Training) -> str:
    rows = []
    for s in subjects_of(training):
        fp16, bf16, n = s.lost("fp16"), s.lost("bf16"), s.numbers
        weight = (s.nonfinite > 0, (fp16.infinities + fp16.zeros) / n if n else 0, fp16.subnormals / n if n else 0)
        if any(weight):
            cells = [
                s.label,
                s.type,
                str(s.nonfinite),
                share(fp16.infinities, n),
                share(fp16.zeros, n),
                share(fp16.subnormals, n),
                share(bf16.zeros, n),
                power(s.least),
                power(s.largest),
            ]
            rows.append((weight, cells))
    rows.sort(key=lambda row: row[0], reverse=True)
    head = ["what", "type", "inf, NaN", "fp16: infinite", "to 0", "subnormal", "bf16: to 0", "least", "largest"]
    return table(head, [cells for _, cells in rows])


def updates(training: Training) -> str:
    rows = [
        (
            s.total("lost_fp16") / s.numbers,
            [s.name, share(s.total("lost_fp16"), s.numbers), share(s.total("lost_bf16"), s.numbers)],
        )
        for s in subjects_of(training)
        if s.what == "update" and s.numbers
    ]
    rows.sort(key=lambda row: row[0], reverse=True)
    return table(["parameter", "an fp16 weight", "a bf16 weight"], [cells for _, cells in rows])


def argument_rows(lines: list[Line]) -> list[list[str]]:
    def number(argument: Line, name: str) -> str:
        value = argument.get(name)
        return power(value) if isinstance(value, (int, float)) else "-"

    return [
        [
            str(line["call"]),
            f"{line['op']}#{line['index'] + 1}" if line["index"] else str(line["op"]),
            ("made " if a.get("output") else "got ") + a["name"],
            str(a.get("type")),
            str(a.get("elements")),
            str(a.get("nonfinite")),
            number(a, "least"),
            number(a, "largest"),
        ]
        for line in lines
        for a in line["arguments"]
    ]


def culprits(training: Training) -> str:
    parts = []
    head = ["call", "op", "argument", "type", "elements", "inf, NaN", "least", "largest"]
    found = each_once(training.culprits)
    for line, others in found[-20:]:
        ring = [call for call in training.calls if call["n"] == line["n"]]
        parts.append(
            f"<details><summary><b>Bracket {line['n']}</b>: {e(where(line))}{others}</summary>"
            + table(head, argument_rows([line]))
            + table(head, argument_rows(ring), "The last calls, the oldest first")
            + "</details>"
        )
    more = len(found) - 20
    return "".join(parts) + (f"<p>… and {more} before these.</p>" if more > 0 else "")


def ops(training: Training) -> str:
    rows = [
        [
            f"{op['name']}#{op['index'] + 1}" if op["index"] else op["name"],
            op["class"],
            *(str(op[name]) for name in ("calls", "passed", "casts", "cache_hits", "failures")),
        ]
        for op in training.ops
    ]
    return table(["op", "class", "calls", "passed as they came", "casts", "cache hits", "failures"], rows)


def told(training: Training) -> str:
    rows = [
        [line.get("code") or line["as"], str(line["n"]), line["message"]]
        for line in training.told
        if line["as"] != "note"
    ]
    return table(["code", "after bracket", "message"], rows)


def survey(training: Training) -> str:
    if not training.survey:
        return ""
    rows = [
        [advice["code"], ", ".join(advice["levels"]), advice["message"].removeprefix(advice["code"] + " ")]
        for advice in training.advice
    ]
    reasons = table(["code", "levels", "advice"], rows)
    codes = ", ".join(dict.fromkeys(advice["code"] for advice in training.advice))
    return (
        f"<p>Advised: <b>{e(advised(training))}</b></p>"
        + table(SURVEY_HEAD, survey_rows(training))
        + (f"<details><summary>Why: {e(codes)}</summary>{reasons}</details>" if rows else "")
    )


def memory(training: Training) -> str:
    return table(["", *MEMORY_HEAD], memory_rows(training))


def comparison(chosen: list[tuple[Trace, Training]], names: list[str]) -> str:
    if len(chosen) != 2:
        return ""
    a, b = chosen[0][1], chosen[1][1]
    found, count = partings(a, b)
    decision = first_decision(a, b)
    rows = [[str(p.n), p.label, p.how] for p in ([decision] if decision else []) + found]
    about = (
        f"{count} things were observed in the same iterations of both. Below is each that parted, when it first did: "
    )
    about += f"the first number is of {e(names[0])}, the second of {e(names[1])}."
    body = table(["bracket", "what", "how"], rows) or "<p>Nowhere.</p>"
    return section("Where they part", about, body)


def each(chosen: list[tuple[Trace, Training]], names: list[str], part: Any) -> str:
    """Returns the part of each training, under its name if there are several."""
    texts = [part(training) for _, training in chosen]
    if len(chosen) == 1:
        return str(texts[0])
    return (
        "".join(f"<h3>{e(name)}</h3>{text or '<p>Nothing.</p>'}" for name, text in zip(names, texts))
        if any(texts)
        else ""
    )


def names_of(chosen: list[tuple[Trace, Training]]) -> list[str]:
    """Returns a name for each training: its level, with the file if levels are equal."""
    levels = [outline_of(training).level for _, training in chosen]
    if len(set(levels)) == len(levels):
        return levels
    return [f"{chr(65 + i)}: {trace.name} ({training.context})" for i, (trace, training) in enumerate(chosen)]


PICK = """<div class=pick><label>What <select id=subject></select></label>
<label>When <select id=when></select></label></div>"""


def page(chosen: list[tuple[Trace, Training]]) -> str:
    plotly, names = script(), names_of(chosen)
    runs = [run_data(name, training) for name, (_, training) in zip(names, chosen)]
    data = {"runs": runs, "windows": [vars(FP16), vars(BF16)], "scales": list(SCALES)}
    any_seen, any_scale = any(run["subjects"] for run in runs), any(run["scale"] for run in runs)
    files = ", ".join(dict.fromkeys(trace.name for trace, _ in chosen))
    problems = [f"{trace.name}: {problem}" for trace, _ in chosen for problem in trace.problems]
    body = [
        f"<header><h1>Mixed precision, seen</h1><p>{e(files)}</p></header>",
        "<section class=problems><h2>Not read</h2><ul>"
        + "".join(f"<li>{e(p)}</li>" for p in dict.fromkeys(problems))
        + "</ul></section>"
        if problems
        else "",
        each(chosen, names, tiles),
        section(
            "Findings",
            "Mistakes that libamp found. docs/reference/mistakes.md explains each code.",
            each(chosen, names, told),
        ),
        comparison(chosen, names),
        section(
            "Loss scale",
            "Crosses are skipped steps: a gradient was infinite or NaN.",
            figure("scale") if any_scale else "",
        ),
        section(
            "Exponents",
            "The distribution of the numbers over powers of two. A 16-bit type loses numbers outside of its window. "
            "Those in the pale part have fewer bits. Gradients are shown unscaled, and the window of fp16 is shifted "
            "by the last loss scale.",
            PICK + figure("exponents") + figure("time") if any_seen else "",
        ),
        section(
            "Gradients and the scale",
            "All observed gradients in fp16, at each loss scale that is a power of two.",
            figure("byscale") if any(run["byScale"] for run in runs) else "",
        ),
        section(
            "Which level fits",
            "From the observed values. docs/guide/choose-a-level.md explains each code.",
            each(chosen, names, survey),
        ),
        section(
            "Lost in 16 bits",
            "Observed values, cast to each type.",
            each(chosen, names, losses),
        ),
        section(
            "Updates that are lost",
            "Updates so small that a weight of the type would not change. FP32 masters keep them.",
            each(chosen, names, updates),
        ),
        section("Where overflows began", "In observed iterations.", each(chosen, names, culprits)),
        section("Ops", "Counts over the whole training.", each(chosen, names, ops)),
        section(
            "Memory",
            "Moments belong to libamp's own optimizers. Casts are the peak in observed iterations. Outputs are the "
            "results of ops in one of them: activations, and their gradients if backward's ops are observed.",
            each(chosen, names, memory),
        ),
        "<footer><p>docs/reference/glossary.md explains the words of this page.</p></footer>",
    ]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Mixed precision: {e(files)}</title><style>{own('page.css')}</style></head>\n<body>"
        + "\n".join(part for part in body if part)
        + f'\n<script type="application/json" id=data>{as_json(data)}</script>\n<script>{plotly}</script>\n'
        f"<script>{own('figures.js')}</script></body></html>\n"
    )
