# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page that needs no network and no library: tables, and figures that figures.js draws."""

from __future__ import annotations

import html
from importlib import resources
from typing import Any

from .compare import first_decision, partings
from .facts import (
    FP8_HEAD,
    MEMORY_HEAD,
    Subject,
    counted,
    fp8_answer,
    fp8_rows,
    memory_rows,
    outline_of,
    power,
    share,
    subjects_of,
)
from .figures import as_json, by_scale_words, figures_of, loss_words, scale_words
from .read import Line, Trace, Training
from .text import SURVEY_HEAD, advised, each_once, survey_rows, where
from .verdict import Verdict, sentence, words_of
from .verdict import verdict_of as verdict_on

ROWS = 100  # of a table
OVERFLOWS = 20


def own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


# ---- text of the page ----


def e(value: object) -> str:
    return html.escape(str(value))


def table(head: list[str], rows: list[list[str]], caption: str = "") -> str:
    if not rows:
        return ""
    words = [i == 0 or any(row[i][:1].isalpha() for row in rows) for i in range(len(head))]
    kinds = [" class=word" if is_word else "" for is_word in words]
    cells = "".join(
        "<tr>" + "".join(f"<td{kind}>{e(cell)}</td>" for kind, cell in zip(kinds, row)) + "</tr>" for row in rows[:ROWS]
    )
    named = f"<caption>{e(caption)}</caption>" if caption else ""
    heads = "".join(f"<th scope=col{kind}>{e(name)}</th>" for kind, name in zip(kinds, head))
    more = f"<p>… and {len(rows) - ROWS} more.</p>" if len(rows) > ROWS else ""
    made = f"<table>{named}<thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>"
    return (f"<div class=tall tabindex=0>{made}</div>" if len(rows) > 12 else made) + more


def section(title: str, about: str, body: str, extra: str = "") -> str:
    return f"<section{extra}><h2>{e(title)}</h2><p>{about}</p>{body}</section>" if body else ""


def figure(name: str, title: str, words: str = "") -> str:
    """Returns a figure that the script fills. words: its text alternative, also for a browser without scripts."""
    return f'<figure id="{name}"><figcaption>{e(title)}</figcaption><p>{e(words)}</p></figure>'


def placed(subject: Subject) -> str:
    return subject.label + (f", {subject.line}" if subject.line else "")


MARKS = {"bad": "Failing", "fair": "Look at this", "good": "Fine"}


def verdict_of(found: Verdict) -> str:
    text = sentence(Verdict(found.kind, found.text))
    remedy = f"<p class=remedy>{e(sentence(Verdict(found.kind, found.remedy)))}</p>" if found.remedy else ""
    return (
        f"<section class='verdict {found.kind}' aria-label=Verdict><p><b>{MARKS[found.kind]}:</b> {e(text)}</p>"
        f"{remedy}</section>"
    )


def verdict(training: Training) -> str:
    return verdict_of(verdict_on(training))


def remarks(training: Training) -> dict[str, str]:
    """Returns the host's remarks by subject, the last one of each, and the rule of the gate."""
    gate = (training.wired or {}).get("gate")
    told = {"gate": gate} if gate else {}
    return told | {line["about"]: line["message"] for line in training.told if line.get("about")}


def tiles_of(facts: list[tuple[str, str]], long: dict[str, str] | None = None) -> str:
    """Returns facts as tiles. long: those that need a line of their own."""
    short = "".join(f"<div><dt>{e(name)}</dt><dd>{e(value)}</dd></div>" for name, value in facts)
    rows = (f"<div class=long><dt>{e(name)}</dt><dd>{e(text)}</dd></div>" for name, text in (long or {}).items())
    return f"<dl>{short}{''.join(rows)}</dl>"


def tiles(training: Training) -> str:
    outline = outline_of(training)
    codes = sorted({line["code"] for line in training.told if line.get("code")})
    told = [line["value"] for line in training.brackets if "value" in line]
    facts = [
        ("level", f"{outline.level}, {outline.type}"),
        ("steps", f"{outline.brackets}"),
        ("skipped", f"{outline.skipped} ({share(outline.skipped, outline.brackets)})"),
        ("last loss scale", power(outline.scale)),
        *([("last loss", "not finite" if told[-1] is None else f"{told[-1]:.4g}")] if told else []),
        ("observed steps", f"{outline.observed}"),
        ("findings", ", ".join(codes) if codes else "none"),
    ]
    return tiles_of(facts, remarks(training))


def losses(training: Training) -> str:
    rows = []
    for s in subjects_of(training):
        fp16, bf16, n = s.lost("fp16"), s.lost("bf16"), s.numbers
        weight = (s.nonfinite > 0, (fp16.infinities + fp16.zeros) / n if n else 0, fp16.subnormals / n if n else 0)
        if any(weight):
            cells = [
                placed(s),
                s.type,
                str(s.nonfinite),
                share(fp16.infinities, n),
                share(fp16.zeros, n),
                share(fp16.subnormals, n),
                share(bf16.zeros, n),
                share(s.summed("e4m3", 2)[0], n),
                share(s.summed("e5m2", 2)[0], n),
                power(s.least),
                power(s.largest),
            ]
            rows.append((weight, cells))
    rows.sort(key=lambda row: row[0], reverse=True)
    head = ["what", "type", "inf, NaN", "fp16: infinite", "to 0", "subnormal", "bf16: to 0", "E4M3: to 0", "E5M2: to 0",
            "least", "largest finite"]  # fmt: skip
    return table(head, [cells for _, cells in rows])


def fp8(training: Training) -> str:
    rows = fp8_rows(training)
    if not rows:
        return ""
    cells = [[placed(row.subject), *row.cells[1:]] for row in rows]
    return f"<p><b>{e(fp8_answer(rows))}</b></p>" + table(FP8_HEAD, cells)


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


def overflow(line: Line, others: str, training: Training, is_open: bool) -> str:
    """An overflow with its op's arguments, and the calls before it."""
    head = ["argument", "type", "elements", "inf, NaN", "least", "largest finite"]
    ring = [call for call in training.calls if call["n"] == line["n"]]
    own = [row[2:] for row in argument_rows([line])]
    return (
        f"<details{' open' if is_open else ''}><summary><b>Step {line['n']}</b>: {e(where(line))}{others}</summary>"
        + table(head, own)
        + (
            "<details><summary>The calls before it, the oldest first</summary>"
            + table(["call", "op", *head], argument_rows(ring))
            + "</details>"
            if ring
            else ""
        )
        + "</details>"
    )


def culprits(training: Training) -> str:
    found = each_once(training.culprits)
    first = verdict_on(training).culprit
    found.sort(key=lambda each: each[0] is not first)  # stable: that of the verdict, then in order
    parts = [overflow(line, others, training, i == 0) for i, (line, others) in enumerate(found[:OVERFLOWS])]
    more = len(found) - OVERFLOWS
    return "".join(parts) + (f"<p>… and {counted(more, 'other')}.</p>" if more > 0 else "")


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
    return table(["code", "after step", "message"], rows)


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
    about = f"Observed in the same iterations of both: {counted(count, 'thing')}. Below is each that parted, when it "
    about += f"first did: the first number is of {names[0]}, the second of {names[1]}."
    body = table(["step", "what", "how"], rows) or "<p>Nowhere.</p>"
    return section("Where they part", e(about), body)


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


def pictures(chosen: list[tuple[Trace, Training]], data: dict[str, Any], omitted: int) -> tuple[str, str, str]:
    """Returns the sections of the loss and its scale, of exponents, and of gradients by scale."""
    trainings = [training for _, training in chosen]
    runs = data["runs"]
    scale, loss = [], []
    if any(run["scale"] for run in runs):
        scale = [figure("scale", "Loss scale", " ".join(map(scale_words, trainings)))]
    if any(each["values"] for run in runs for each in run["scale"]):
        told = [training for training in trainings if any("value" in line for line in training.brackets)]
        loss = [figure("loss", "Loss", " ".join(map(loss_words, told)))]
    seen = any(run["subjects"] for run in runs)
    more = f" No room on this page: {counted(omitted, 'tensor')}." if omitted else ""
    return (
        section(
            "Loss and loss scale" if loss else "Loss scale",
            "Crosses are skipped steps: a gradient was infinite or NaN.",
            f"<div class=pair>{''.join(loss + scale)}</div>" if scale or loss else "",
        ),
        section(
            "Exponents",
            "The distribution of the numbers over powers of two. A 16-bit type loses numbers outside of its window. "
            "Those in the pale part have fewer bits. Gradients are shown unscaled, and the window of fp16 is shifted "
            f"by the last loss scale.{more}",
            PICK + figure("exponents", "Share of the elements by magnitude") + figure("time", "Over time")
            if seen
            else "",
        ),
        section(
            "Gradients and the scale",
            "All observed gradients in fp16, at each loss scale that is a power of two.",
            figure("byscale", "Lost gradients by loss scale", " ".join(by_scale_words(run["byScale"]) for run in runs))
            if any(run["byScale"] for run in runs)
            else "",
        ),
    )


def tables(chosen: list[tuple[Trace, Training]], names: list[str]) -> list[str]:
    """Returns the sections behind the figures."""
    return [
        section(
            "Which level fits",
            "From the observed values. docs/guide/choose-a-level.md explains each code.",
            each(chosen, names, survey),
        ),
        section(
            "Would it train in FP8?",
            "A dry run: each input of a product, cast at the best scale of each observed step, a power of two at which "
            "nothing overflows. E4M3 is for forward, E5M2 for backward. An input stays in 16 bits if more than a "
            "twentieth of its nonzero elements would become 0. MXFP8: sampled blocks of 32 with a scale of their own.",
            each(chosen, names, fp8),
        ),
        section(
            "Lost in 16 and 8 bits",
            "Observed values, cast to each type: to FP8 at the best scale of the tensor.",
            each(chosen, names, losses),
        ),
        section(
            "Updates that are lost",
            "Updates so small that a weight of the type would not change. FP32 masters keep them.",
            each(chosen, names, updates),
        ),
        section("Ops", "Counts over the whole training.", each(chosen, names, ops)),
        section(
            "Memory",
            "Moments belong to libamp's own optimizers. Casts are the peak in observed steps. Outputs are the results "
            "of ops in one of them: activations, and their gradients if backward's ops are observed.",
            each(chosen, names, memory),
        ),
    ]


def page(chosen: list[tuple[Trace, Training]]) -> str:
    names = names_of(chosen)
    trainings = [training for _, training in chosen]
    found = [verdict_on(training) for training in trainings]
    data, omitted = figures_of(names, trainings, [each.subject for each in found])
    scale, exponents, by_scale = pictures(chosen, data, omitted)
    files = ", ".join(dict.fromkeys(trace.name for trace, _ in chosen))
    problems = [f"{trace.name}: {problem}" for trace, _ in chosen for problem in trace.problems]
    steps = " and ".join(dict.fromkeys(words_of(training).bracket for training in trainings))
    overflows = section("Where overflows began", "In observed steps.", each(chosen, names, culprits))
    failing = any(each.kind == "bad" for each in found)
    body = [
        f"<header><h1>Mixed precision, seen</h1><p>{e(files)}</p></header>",
        each(chosen, names, verdict),
        *((overflows, exponents) if failing and overflows else ()),
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
        scale,
        *(() if failing and overflows else (exponents, overflows)),
        by_scale,
        *tables(chosen, names),
        f"<footer><p>A step is one {e(steps)}. docs/reference/glossary.md explains the other words.</p></footer>",
    ]
    return document(files, body, data)


def document(title: str, body: list[str], data: dict[str, Any]) -> str:
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Mixed precision: {e(title)}</title><style>{own('page.css')}</style></head>\n<body>"
        + "\n".join(part for part in body if part)
        + f'\n<script type="application/json" id=data>{as_json(data)}</script>\n'
        f"<script>{own('figures.js')}</script></body></html>\n"
    )
