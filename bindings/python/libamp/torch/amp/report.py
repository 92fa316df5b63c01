# SPDX-License-Identifier: Apache-2.0
"""Reports of an initialize call: its effects, its health and its findings."""
from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch

from ... import _core, _findings, _html
from ..._words import counted
from .. import _tested_versions
from . import patching, product_rules
from .patching import LISTS, TORCH_PROMOTES
from .session import Session, live

# Ops that are FP32 in Apex's lists but not in torch.autocast's. The extra cost of a call between two linear layers:
# casts (forward and backward), and bytes for backward an element of the argument (docs/reference/python-casts.md).
PRICES = {
    "gelu": (4, 2),
    "std": (0, 2),
    "var": (0, 2),
    "multilabel_soft_margin_loss": (1, 12),
    "local_response_norm": (-1, 4),
    "normalize": (-1, -2),
}
_FP32 = 2
_CLASSES = ("by list", "lower", "fp32", "promote", "promote-sequence", "banned", "leave")  # the library's names
# Functions that share the autocast rule of an op with another name.
_RULES = {"__pow__": "pow", "__rpow__": "pow", "linalg_norm": "linalg_vector_norm"}
# torch's other names for ops of TORCH_PROMOTES: Apex's lists do not have them.
_OTHER_NAMES = ("multiply", "subtract", "divide", "not_equal", "less", "less_equal", "greater", "greater_equal")
_TORCHS_OWN = "torch promotes, and a tensor without dimensions widens nothing"


def _sessions_of(what: Any, asked: str) -> list[Session]:
    """Returns the session of this model or optimizer, or for None all sessions in force. Raises RuntimeError if there
    is none."""
    spec = getattr(what, "_amp_stash", None) or getattr(what, "_amp_forward", None)
    sessions = list(live()) if what is None else [spec.session] if spec is not None and spec.session is not None else []
    if what is not None and not (sessions and sessions[0].alive):
        raise RuntimeError(f"amp.{asked}: this {type(what).__name__} went through no amp.initialize that is in force")
    return sessions


def findings() -> list[_findings.Finding]:
    """Returns the mistakes found so far in every initialize call in force: the library's, then the script's."""
    found = [finding for session in live() for finding in _findings.listed(session.context, session.record)]
    return _html.Rows(found, counted(len(found), "finding"), ("code", "where", "what"), _finding_row)


def _finding_row(finding: _findings.Finding) -> tuple[str, str, str]:
    return finding.code, f"{finding.filename}:{finding.lineno}" if finding.filename else "", finding.message


def health(what: Any = None) -> str:
    """Returns a report for people: parameters wired, calls, casts, gradients, steps, findings, and "sound" or the
    number of findings.

    what: a model or an optimizer selects its initialize call, None all in force. Raises RuntimeError if it belongs to
    none.
    """
    reports = [_health_of(session) for session in _sessions_of(what, "health")]
    if reports and (untried := _tested_versions.outside(torch.__version__)):
        reports[0] = f"{untried}\n{reports[0]}"
    return _html.Text("\n".join(reports), "".join(map(_verdict_first, reports)))


def _health_of(session: Session) -> str:
    first, *lines = _findings.report(session.context, session.record).split("\n")
    return "\n".join([first, *_rule(session), *lines])


def _rule(session: Session) -> list[str]:
    return [] if session.products is None else [product_rules.sentence(session.gate, session.products)]


def _verdict_first(report: str) -> str:
    *rest, verdict = report.rstrip("\n").split("\n")
    mark = "✓" if verdict == "sound" else "✗"
    return f"<strong>{mark} {_html.escaped(verdict)}</strong>" + _html.lines("\n".join(rest))


def explain(what: Any = None, op: str | None = None) -> str:
    """Returns the effects of an initialize call in words: on parameters, casts and the loss.

    what: a model or an optimizer selects the call, None all in force. op: name of a torch function, as "linear". It
    returns the function's class and the list that gives it. Raises RuntimeError if the object belongs to no call in
    force.
    """
    told = [_explained(session, op) for session in _sessions_of(what, "explain")]
    return _html.Text("\n".join(text for text, _ in told), "".join(shown for _, shown in told))


def _explained(session: Session, op: str | None) -> tuple[str, str]:
    if op is not None:
        said = "\n".join(_op_lines(session, op))
        return said + "\n", _html.lines(said)
    said = "\n".join([session.context.explain().rstrip("\n"), *_rule(session)])
    head = ("parameters", "of type", "elements", "masters")
    rows = [
        (n, dtype, elements, "float32" if mastered else "")
        for (dtype, mastered), (n, elements) in sorted(_kinds(session).items())
    ]
    plain = [
        f"  {counted(n, 'parameter')} in {d}, {counted(e, 'element')}{', with FP32 masters' if m else ''}"
        for n, d, e, m in rows
    ]
    return "\n".join([said, *plain]) + "\n", _html.lines(said) + (_html.table("", head, rows) if rows else "")


def _op_lines(session: Session, op: str) -> list[str]:
    """Returns lines about an op: the class by the script's registration, then the class by the list for all other
    places."""
    name = op.rpartition("::")[2].partition(".")[0] if "::" in op else op.rpartition(" ")[2].rpartition(".")[2]
    given, others = patching.classes_of(name) if session.patches else ([], 0)
    lines = [f"{op}: {_CLASSES[op_class]} ({path}, {source})" for path, op_class, source in given]
    if given and not others:
        return lines
    try:
        said = session.context.explain(op).rstrip("\n")
    except _core.ArgumentError:  # no list has it
        if session.patches and name in _OTHER_NAMES:
            lines.append(f"{op}: leave (in no list); {_TORCHS_OWN}")
        if not lines:
            raise
        return lines
    # "described" is a word for hosts that describe their ops to the library
    said = said.removesuffix(", not described")
    return [*lines, said + (" elsewhere" if given else "") + _remark(said, name, others > 0)]


def _remark(said: str, name: str, replaced: bool) -> str:
    """Returns a remark about a listed op that its class alone does not express."""
    if not said.endswith(" lists)"):
        return ""
    in_place = name.startswith("__i") if name.endswith("__") else name.endswith("_")  # __iadd__, add_
    if in_place and replaced:
        error = "; in place on a 16-bit tensor it is an error"
        cast = "; in place: other tensors are cast to the type of the one that is written"
        return error if ": fp32 (" in said else cast
    op = said.rpartition("(")[2].partition(",")[0]
    if said.endswith(", in the apex lists)") and (own := _apexs_own(op, replaced)):
        return own
    return _beside_autocast(op) if ": fp32 (" in said else ""


def _apexs_own(op: str, replaced: bool) -> str:
    """Returns a remark about an op in Apex's lists that torch.autocast does not cast."""
    if op in TORCH_PROMOTES and not replaced:
        return f"; not replaced, as Apex left it out: {_TORCHS_OWN}"
    if op in TORCH_PROMOTES:
        return "; two tensors with dimensions are left to torch's own promotion, which makes no copy"
    if op in PRICES:
        casts, size = PRICES[op]
        return f"; torch.autocast leaves it: here casts a call: {casts:+d}, bytes an element for backward: {size:+d}"
    return ""


def _beside_autocast(op: str) -> str:
    """Returns a remark about torch.autocast's treatment on CUDA of an op in FP32."""
    if not any(name == op and fp16 == _FP32 for name, _, fp16, _ in _core.list_ops(LISTS["torch"])):
        return ""
    if op == "cross_entropy":
        return "; on CUDA devices torch.autocast computes its log_softmax in the type that arrives"
    rule = _RULES.get(op, op)
    if rule in _with_a_rule("CUDA"):
        return ", as under torch.autocast on CUDA devices"
    on_cpus = ", as under torch.autocast on CPUs" if rule in _with_a_rule("CPU") else ""
    return f"{on_cpus}; on CUDA devices torch.autocast has no rule for it and leaves the type that arrives"


@functools.cache
def _with_a_rule(device: str) -> frozenset[str]:
    """Returns the names of torch's ops that have an autocast kernel for this device type."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    return frozenset(name.removeprefix("aten::").partition(".")[0] for name in names if name.startswith("aten::"))


def _kinds(session: Session) -> dict[tuple[str, bool], tuple[int, int]]:
    """Returns the number of the context's parameters and elements by type and by presence of a master."""
    params = {id(p): p for model in session.models if (module := model()) is not None for p in module.parameters()}
    numbers: Counter[tuple[str, bool]] = Counter()
    elements: Counter[tuple[str, bool]] = Counter()
    for key, param in params.items():
        kind = str(param.dtype).removeprefix("torch."), key in session.masters
        numbers[kind] += 1
        elements[kind] += param.numel()
    return {kind: (numbers[kind], elements[kind]) for kind in numbers}
