# SPDX-License-Identifier: Apache-2.0
"""The result of the doctor (python -m libamp.doctor --json FILE) as a page and as text."""

from __future__ import annotations

import json
from typing import Any

from .facts import counted, power, share
from .figures import thin
from .page import document, e, figure, section, table, tiles_of, verdict_of
from .read import Unreadable
from .verdict import Verdict

LOSSES = 1000  # points of the loss
SHOWN = 40  # parameters
Row = dict[str, Any]


def is_result(path: str) -> bool:
    """Returns True if the file begins as a result does, not as a trace. Raises OSError if there is no such file."""
    with open(path, "rb") as file:
        return b'"verdict"' in file.read(64)


def read(path: str) -> Row:
    """Reads a result. Raises Unreadable if it is none."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if isinstance(data, dict) and {"verdict", "findings", "run"} <= data.keys():
            return data
    except ValueError as error:
        raise Unreadable(f"{path}: not a result of libamp.doctor: {error}") from None
    raise Unreadable(f"{path}: not a result of libamp.doctor")


def number(value: Any) -> float | None:
    """Returns a number, None for one that is not finite ("nan")."""
    return value if isinstance(value, (int, float)) else None


def place(found: Row) -> str:
    filename, line = found["place"][:2]
    return f"{filename.rsplit('/', 1)[-1]}:{line}" if filename else ""


def is_advice(found: Row) -> bool:
    from .. import _doctor_findings

    return bool(_doctor_findings.is_advice(found["code"]))


def verdict(data: Row) -> Verdict:
    """Returns the worst finding in a sentence: the first, since faults are before advice."""
    if data["status"] == 2:
        return Verdict("fair", data["verdict"])
    if not data["findings"]:
        return Verdict("fair" if data.get("libamp_findings") else "good", data["verdict"])
    first, count = data["findings"][0], len(data["findings"]) - 1
    where = ", ".join(part for part in (first["subject"], place(first)) if part)
    more = f" ({count} more below)" if count else ""
    text = f"{first['title']}{f' ({where})' if where else ''}: {first['saw']}{more}"
    return Verdict("fair" if is_advice(first) else "bad", text, first["remedy"])


def findings(data: Row) -> str:
    """Returns the findings in full, the first one open."""
    parts = []
    for i, found in enumerate(data["findings"]):
        ranks = f" on ranks {', '.join(map(str, found['ranks']))}" if len(data.get("ranks", [])) > 1 else ""
        where = ", ".join(part for part in (found["subject"], place(found)) if part)
        parts.append(
            f"<details{' open' if i == 0 else ''}><summary><b>{e(found['code'])}</b> {e(found['title'])}"
            f"{e(f' ({where})' if where else '')}: {e(found['saw'])}{e(ranks)}</summary>"
            f"<p>{e(found['why'])}</p><p><b>{e(found['remedy'])}</b></p></details>"
        )
    return "".join(parts)


def scales(run: Row) -> list[Row]:
    """Returns the data of the figures of the loss and of each scaler's scale."""
    values = [[row["iteration"], number(row["value"])] for row in thin(run["losses"], LOSSES)]
    made = []
    for i, scaler in enumerate(run["scalers"] or [{}]):
        history = [(n, scale) for n, scale in scaler.get("history", []) if number(scale)]
        if history and number(scaler["scale"]) and history[-1][0] < run["iterations"]:
            history.append((run["iterations"], scaler["scale"]))
        at = dict(history)
        skips = []
        for n in scaler.get("skip_iterations", []):
            before = [scale for m, scale in sorted(at.items()) if m <= n]
            skips.append([n, before[-1] if before else scaler["first_scale"], None])
        made.append({
            "loss": i,
            "n": [n for n, _ in history],
            "scale": [scale for _, scale in history],
            "skips": [skip for skip in skips if number(skip[1])] if history else [],
            "values": [] if i else values,
        })  # fmt: skip
    return made


def loss_words(run: Row) -> str:
    finite = [number(row["value"]) for row in run["losses"] if number(row["value"]) is not None]
    if not finite:
        return "No loss was finite."
    bad = f"; {run['nonfinite_losses']} were not finite" if run["nonfinite_losses"] else ""
    return f"Loss over {counted(run['iterations'], 'iteration')}: from {finite[0]:.4g} to {finite[-1]:.4g}{bad}."


def scale_words(run: Row) -> str:
    words = [f"{s['kind']}: from {power(number(s['first_scale']))} to {power(number(s['scale']))}, {s['skips']} of "
             f"{s['steps']} steps skipped." for s in run["scalers"]]  # fmt: skip
    return "Loss scale. " + " ".join(words)


def parameters(run: Row) -> str:
    """Returns the parameters whose elements move least."""
    rows = [p for p in run["params"] if p["sampled"] and p["looks"]]
    rows.sort(key=lambda p: p["moved"] / p["sampled"])
    cells = [[
        p["name"], p["dtype"], share(p["moved"], p["sampled"]), share(round(1e6 * p["zeros"]), 1000000),
        power(number(p["grad_min"])), power(number(p["grad_max"])), power(number(p["weight_max"])),
        p["grad_dtype"] or "-",
    ] for p in rows[:SHOWN]]  # fmt: skip
    head = ["parameter", "type", "moved", "gradients that are 0", "least gradient", "largest finite", "largest weight",
            "type of the gradient"]  # fmt: skip
    return table(head, cells) + (f"<p>… and {len(rows) - SHOWN} more.</p>" if len(rows) > SHOWN else "")


def causes(run: Row) -> str:
    rows = [[
        str(cause["iteration"]), cause["kind"], cause["subject"], cause["module"] or "-", place(cause) or "-",
        cause["value"], power(number(cause["input_largest"])), cause["output_dtype"] or "-",
    ] for cause in run["causes"]]  # fmt: skip
    return table(["iteration", "from", "which", "module", "line", "first", "largest finite input", "type"], rows)


def page(path: str, data: Row) -> str:
    run = data["run"]
    shown = scales(run)
    looks, tried = (sum(each[name] for each in run["optimizers"]) for name in ("looks", "tried"))
    skipped = sum(each["skipped"] for each in run["optimizers"])
    facts = [
        ("script", run["script"].rsplit("/", 1)[-1] or "-"),
        ("torch", run["torch"] or "-"),
        ("iterations", str(run["iterations"])),
        ("steps", f"{tried}, {looks} looked at"),
        ("skipped", f"{skipped} ({share(skipped, tried)})"),
        *([("last loss scale", power(number(run["scalers"][0]["scale"])))] if run["scalers"] else []),
        *([("ranks", str(run["ranks"]))] if run["ranks"] > 1 else []),
        ("findings", str(len(data["findings"]) + data.get("libamp_findings", 0))),
    ]
    loss = figure("loss", "Loss", loss_words(run)) if run["losses"] else ""
    scale = figure("scale", "Loss scale", scale_words(run)) if any(each["n"] for each in shown) else ""
    unseen = "".join(f"<li>{e(sentence)}</li>" for sentence in run["unseen"])
    body = [
        f"<header><h1>Mixed precision, looked at</h1><p>{e(path)}</p></header>",
        verdict_of(verdict(data)),
        section("Findings", "docs/reference/mistakes.md explains each code.", findings(data)),
        tiles_of(facts),
        section(
            "Loss and loss scale",
            "Crosses are skipped steps: a gradient was infinite or NaN.",
            f"<div class=pair>{loss}{scale}</div>" if loss or scale else "",
        ),
        section("Where inf and NaN came from", "In iterations that were watched op by op.", causes(run)),
        section("Parameters", "Sampled elements: those that moved least come first.", parameters(run)),
        section("libamp's own findings", "", f"<pre>{e(''.join(run['libamp']))}</pre>" if run["libamp"] else ""),
        section("Not seen", "What the doctor could not look at.", f"<ul>{unseen}</ul>" if unseen else ""),
    ]
    name = {"name": "", "scale": shown if loss or scale else [], "last": 0, "subjects": [], "byScale": None}
    return document(path, body, {"runs": [name], "windows": [], "scales": [], "first": None})


def text(data: Row) -> str:
    lines = [f"{data['verdict']}"]
    for found in data["findings"]:
        where = ", ".join(part for part in (found["subject"], place(found)) if part)
        lines.append(f"{found['code']} {found['title']} ({where}): {found['saw']}: {found['remedy']}")
    return "\n".join([*lines, *data["run"]["libamp"], *(f"not seen: {each}" for each in data["run"]["unseen"])]) + "\n"
