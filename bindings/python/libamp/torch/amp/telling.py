# SPDX-License-Identifier: Apache-2.0
"""What is asked of an initialize: what it does, whether it is sound, what was found."""
from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ... import _core, _findings, _html
from .. import _tried
from .patching import LISTS, TORCH_PROMOTES
from .session import Session, live

# Ops that are FP32 in Apex's lists and not in torch.autocast's. What a call between two linear layers takes more: casts
# (forward and backward), and bytes for backward (an element of the argument). docs/python.md has the table.
PRICES = {
    "gelu": (4, 2),
    "std": (0, 2),
    "var": (0, 2),
    "multilabel_soft_margin_loss": (1, 12),
    "local_response_norm": (-1, 4),
    "normalize": (-1, -2),
}
_FP32 = 2


def _sessions_of(what: Any, asked: str) -> list[Session]:
    """The one that this model or optimizer went through; None: each that is in force."""
    spec = getattr(what, "_amp_stash", None) or getattr(what, "_amp_forward", None)
    sessions = list(live()) if what is None else [spec.session] if spec is not None and spec.session is not None else []
    if what is not None and not (sessions and sessions[0].alive):
        raise RuntimeError(f"amp.{asked}: this {type(what).__name__} went through no amp.initialize that is in force")
    return sessions


def findings() -> list[_findings.Finding]:
    """What was found so far, in every initialize that is in force: the library's, then the script's."""
    found = [finding for session in live() for finding in _findings.listed(session.context, session.record)]
    return _html.Rows(found, f"{len(found)} findings", ("code", "where", "what"), _finding_row)


def _finding_row(finding: _findings.Finding) -> tuple[str, str, str]:
    return finding.code, f"{finding.filename}:{finding.lineno}" if finding.filename else "", finding.message


def health(what: Any = None) -> str:
    """A report for people of the initialize that this model or optimizer went through (None: each that is in
    force): what was wired, called, cast; gradients seen and missing; steps; findings, and "sound" or their number."""
    reports = [_findings.report(session.context, session.record) for session in _sessions_of(what, "health")]
    if reports and (untried := _tried.outside(torch.__version__)):
        reports[0] = f"{untried}\n{reports[0]}"
    return _html.Text("\n".join(reports), "".join(map(_verdict_first, reports)))


def _verdict_first(report: str) -> str:
    *rest, verdict = report.rstrip("\n").split("\n")
    mark = "✓" if verdict == "sound" else "✗"
    return f"<strong>{mark} {_html.escaped(verdict)}</strong>" + _html.lines("\n".join(rest))


def explain(what: Any = None, op: str | None = None) -> str:
    """What the initialize that this model or optimizer went through (None: each that is in force) does, in words: to
    parameters, casts and the loss; op: to a function of torch's by its name, as "linear", and by which list."""
    told = [_explained(session, op) for session in _sessions_of(what, "explain")]
    return _html.Text("\n".join(text for text, _ in told), "".join(shown for _, shown in told))


def _explained(session: Session, op: str | None) -> tuple[str, str]:
    # "described" is a word for hosts that describe their ops to the library
    said = session.context.explain(op).rstrip("\n").removesuffix(", not described")
    if op is not None:
        said += _beside_autocast(said)
        return said + "\n", _html.lines(said)
    head = ("parameters", "of type", "elements", "masters")
    rows = [
        (n, dtype, elements, "float32" if mastered else "")
        for (dtype, mastered), (n, elements) in sorted(_kinds(session).items())
    ]
    plain = [f"  {n} parameters in {d}, {e} elements{', with FP32 masters' if m else ''}" for n, d, e, m in rows]
    return "\n".join([said, *plain]) + "\n", _html.lines(said) + (_html.table("", head, rows) if rows else "")


def _beside_autocast(said: str) -> str:
    """Of an op in Apex's lists: what torch.autocast does with it on CUDA devices."""
    if not said.endswith(", in the apex lists)"):
        return ""
    op = said.rpartition("(")[2].partition(",")[0]
    if op in TORCH_PROMOTES:
        return "; two tensors with dimensions are left to torch's own promotion, which makes no copy"
    if op in PRICES:
        casts, size = PRICES[op]
        return f"; torch.autocast leaves it: here {casts:+d} casts a call, {size:+d} bytes an element for backward"
    apexs, torchs = ({name: fp16 for name, _, fp16, _ in _core.list_ops(number)} for number in LISTS.values())
    return ", as under torch.autocast on CUDA devices" if apexs.get(op) == torchs.get(op) == _FP32 else ""


def _kinds(session: Session) -> dict[tuple[str, bool], tuple[int, int]]:
    """Parameters that are the context's, and their elements, by type and by whether they have a master."""
    params = {id(p): p for model in session.models if (module := model()) is not None for p in module.parameters()}
    numbers: Counter[tuple[str, bool]] = Counter()
    elements: Counter[tuple[str, bool]] = Counter()
    for key, param in params.items():
        kind = str(param.dtype).removeprefix("torch."), key in session.masters
        numbers[kind] += 1
        elements[kind] += param.numel()
    return {kind: (numbers[kind], elements[kind]) for kind in numbers}
