# SPDX-License-Identifier: Apache-2.0
"""Mistakes of scripts: their table, the warnings with the line of the script, and the record of those already
reported."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, NamedTuple

from ._environment import switch
from ._words import counted

# code: (title, reason, remedy). docs/reference/mistakes.md is generated from it, by
# tests/docs/check_mistakes.py . --write. The library's findings are in src/context/findings.inc, with their remedies in
# Python. A code is never reused.
FINDINGS: dict[str, tuple[str, str, str]] = {
    "AMP-M30": (
        "backward ran outside the block of scale_loss",
        "Its gradients lack the loss scale: small ones became 0 in 16 bits, libamp finds no overflow in them, and at "
        "O2 and O5 they never reach the masters.",
        "run backward inside the block, on its value: with amp.scale_loss(loss, optimizer) as scaled_loss: "
        "scaled_loss.backward()",
    ),
    "AMP-M31": (
        "backward ran on the loss, not on the scaled loss",
        "The end of the block divides gradients by the loss scale. These were never multiplied by it, so they are too "
        "small by that factor.",
        "run backward on the value of the block: with amp.scale_loss(loss, optimizer) as scaled_loss: "
        "scaled_loss.backward()",
    ),
    "AMP-M32": (
        "the model's gradients were changed, not the masters'",
        "At O2 and O5 the optimizer steps FP32 masters, which have gradients of their own. The gradients of 16-bit "
        "parameters are still scaled, and no step uses them: clipping or changing them has no effect.",
        "use amp.master_params(optimizer) in place of model.parameters(), after the block of amp.scale_loss",
    ),
    "AMP-M33": (
        "an optimizer that amp.initialize did not get steps the model",
        "It steps after overflows too, on gradients that may still be scaled. At O2 and O5 it changes 16-bit weights, "
        "which the masters of the other optimizer then overwrite.",
        "give every optimizer of the model to amp.initialize, and use the optimizers that it returns; a new optimizer "
        "needs amp.shutdown and another amp.initialize, new parameters optimizer.add_param_group",
    ),
    "AMP-M34": (
        "no optimizer of the model has a new parameter",
        "The parameter came after amp.initialize and has a gradient. None of the optimizers given to amp.initialize "
        "updates it.",
        "add it before amp.initialize and before the optimizer is made, or give it to optimizer.add_param_group",
    ),
    "AMP-M35": (
        "the model's types were changed after amp.initialize",
        "The level sets the types of a model: half() makes 16-bit weights without masters, and float() undoes the "
        "level's 16-bit weights.",
        "leave the types to opt_level: no half(), float() or to(dtype) after amp.initialize",
    ),
    "AMP-M36": (
        "torch.autocast around an initialized model",
        "Both cast by their own lists: autocast lowers ops that the level leaves in FP32.",
        "remove torch.autocast, or call amp.initialize with enabled=False",
    ),
    "AMP-M37": (
        "GradScaler steps an initialized optimizer",
        "There are two loss scales: amp.scale_loss does not remove that of GradScaler, or there was no "
        "amp.scale_loss.",
        "remove GradScaler: with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward(), then "
        "optimizer.step()",
    ),
    "AMP-M38": (
        "a step without a block of scale_loss since the last one",
        "There are gradients, and no block of amp.scale_loss has unscaled them or looked for overflows.",
        "run each backward inside amp.scale_loss with this optimizer, and step once after it",
    ),
    "AMP-M39": (
        "a copy of an initialized model is trained",
        "A copy has the types and casts of the level. It has no masters, and no optimizer that unscales its "
        "gradients.",
        "copy the model before amp.initialize and give it both, or run the copy under torch.no_grad()",
    ),
    "AMP-M40": (
        "the loss reaches no parameter of the optimizer",
        "Backward ran inside the block, and no parameter of the optimizer got a gradient: nothing is trained.",
        "compute the loss from the model that amp.initialize returned, without detach() or no_grad() between, and "
        "name its optimizer in the block",
    ),
    "AMP-M41": (
        "gradients were clipped before they were unscaled",
        "Gradients have the loss scale until the block of amp.scale_loss ends, so the limit is too small by that "
        "factor, and masters have no gradients yet.",
        "clip after the block: torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), limit), then "
        "optimizer.step()",
    ),
    "AMP-M42": (
        "gradients were cleared between backward and step",
        "zero_grad discards the gradients before the step uses them: nothing is trained.",
        "call zero_grad before the block of amp.scale_loss, or after the step",
    ),
    "AMP-M47": (
        "a 16-bit parameter and its master were both written",
        "The script wrote different values to both since they last agreed, and libamp cannot tell which write came "
        "last. The master took the values of the parameter where they differ.",
        "write one of them; after a write to the parameter get the masters again from amp.master_params(optimizer) or "
        "model.state_dict()",
    ),
    "AMP-M48": (
        "an average of weights is stored in 16 bits",
        "An average moves by less in a step than 16 bits resolve. The change is rounded away: with a decay of 0.999 "
        "the average lags behind the weights, or never moves.",
        "average amp.master_params(optimizer) or model.state_dict(), which are FP32, in place of the model's "
        "parameters",
    ),
    "AMP-M49": (
        "a 16-bit parameter on a GPU was written through .data",
        "torch does not count such writes, so a step would overwrite them with the master. On a GPU libamp looks for "
        "them in the first two iterations, and from then on preserves writes to this parameter, at the cost of some "
        "kernels a step. A parameter first written this way in a later iteration loses the write.",
        "write the parameter itself: with torch.no_grad(): p.clamp_(...), not p.data.clamp_(...)",
    ),
    "AMP-M50": (
        "16 bits ruin a buffer",
        "16-bit positions above 2048 (fp16) or 256 (bf16) change, and rotary embeddings drift.",
        "name it in keep_buffers_fp32 of amp.initialize",
    ),
}


class FindingWarning(UserWarning):
    """Warns of a mistake, with its code, at the line of the script. docs/reference/mistakes.md lists all codes."""


def _short(filename: str) -> str:
    here = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return os.path.basename(filename) if here.startswith(os.pardir) else here


class Place(NamedTuple):
    """A line of the script."""

    filename: str
    lineno: int
    module: str = "__main__"

    def __str__(self) -> str:
        """Returns "model.py:41", with the folder in the present one, or "" if unknown."""
        return f"{_short(self.filename)}:{self.lineno}" if self.filename else ""


class Finding(NamedTuple):
    """A mistake. code: AMP-M01 and so on. subject: op or parameter, "" for the whole. message: the whole line. times:
    number of occurrences. filename, lineno: in the script, "" and 0 if unknown."""

    code: str
    subject: str
    message: str
    times: int = 1
    filename: str = ""
    lineno: int = 0


STRICT = "LIBAMP_CHECK"  # environment variable of python -m libamp.run --check
_HERE = os.path.dirname(os.path.abspath(__file__))


def is_strict() -> bool:
    """Returns True to check in all iterations instead of the first ones only."""
    return switch(STRICT)


def _between() -> tuple[str, ...]:
    """Returns the folders of files between the script and libamp that mean nothing to the script's author."""
    torch = sys.modules.get("torch")
    folders = [_HERE, *(getattr(torch, "__path__", None) or ())]
    return (
        *(os.path.join(folder, "") for folder in folders),
        os.path.join(os.path.dirname(os.__file__), "contextlib.py"),
    )


def place() -> Place:
    """Returns the line of the script: the innermost frame outside of libamp and torch. A thread of torch has none."""
    between = _between()
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(between) and not name.startswith("<frozen"):
            return Place(name, frame.f_lineno, str(frame.f_globals.get("__name__", "__main__")))
        frame = frame.f_back  # type: ignore[assignment]
    return Place("", 0)


_checked: list[Finding] = []  # all findings while they are kept
_reports: list[str] = []  # reports of ended contexts
_kept = False  # a doctor wants reports and findings of this process


def keep_reports(kept: bool) -> None:
    """Keeps all findings, and the reports of contexts that end, until they are taken."""
    global _kept
    _kept = kept


def _is_kept() -> bool:
    return _kept or is_strict()


def take_checked() -> list[Finding]:
    """Returns the findings of this process since the last call."""
    taken, _checked[:] = list(_checked), []
    return taken


def take_reports() -> list[str]:
    """Returns the reports of this process since the last call."""
    taken, _reports[:] = list(_reports), []
    return taken


class Record:
    """Findings of one initialize call. Each code and subject is reported once."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Finding] = {}
        self.missing = True  # a trained parameter has no gradient (the library does not know frozen ones)
        self._moot: set[str] = set()  # messages of the library to suppress

    def has(self, *codes: str) -> bool:
        return any(code in codes for code, _ in self.found)

    def report(self, code: str, subject: str = "", saw: str = "", at: Place | None = None) -> None:
        """Reports a finding of the Python side. saw: the observation. at: the line, by default the present one."""
        title, _, mend = FINDINGS[code]
        of = f" ({subject})" if subject else ""
        self._record(code, subject, f"{code} {title}{of}{': ' + saw if saw else ''}: {mend}", at)

    def relay(self, message: str) -> None:
        """Reports a finding of the library. The message begins with its code."""
        explained = self.has("AMP-M40", "AMP-M42") or not self.missing
        if message.startswith("AMP-M08") and explained and "underflow" not in message:
            self._moot.add(message)
        else:
            self._record(message[:7], message, message, None)

    def is_moot(self, text: str) -> bool:
        """Returns True if the text is, or contains, one of the moot messages."""
        return any(message in text for message in self._moot)

    def _record(self, code: str, subject: str, message: str, at: Place | None) -> None:
        known = self.found.get((code, subject))
        if known is not None:
            self.found[code, subject] = known._replace(times=known.times + 1)
            return
        at = at or place()
        finding = Finding(code, subject, message, 1, at.filename, at.lineno)
        self.found[code, subject] = finding
        if _is_kept():
            _checked.append(finding)
        if at.filename:
            warnings.warn_explicit(message, FindingWarning, at.filename, at.lineno, at.module)
        else:
            warnings.warn(message, FindingWarning, stacklevel=2)


# ---- queries ----


def listed(context: Any, record: Record) -> list[Finding]:
    """Returns the library's findings, each with the line of the script, then the script's."""
    found = []
    for code, subject, message, times in context.findings():
        heard = record.found.get((code, message), Finding(code, subject, message))
        if not record.is_moot(message):
            found.append(heard._replace(subject=subject, times=times))
    return found + [finding for (code, _), finding in record.found.items() if code in FINDINGS]


def report(context: Any, record: Record) -> str:
    """Returns the library's report with the script's findings before its last line."""
    lines = context.health().rstrip("\n").split("\n")[:-1]
    # checks that work for scripts but not for adapters (AMP-M31, AMP-M34)
    lines = [line for line in lines if not line.startswith("cannot be seen: ")]
    lines = [line for line in lines if not record.is_moot(line)]
    found = listed(context, record)
    for finding in found:
        at = f"{finding.filename}:{finding.lineno}: " if finding.filename else ""
        lines = [at + line if finding.message in line else line for line in lines]
        if finding.code in FINDINGS:
            lines.append(at + finding.message)
    lines.append(counted(len(found), "finding") if found else "sound")
    return "\n".join(lines) + "\n"


def ends(context: Any, record: Record) -> None:
    """Keeps the report of a context that ends, if one is wanted at the end of the script."""
    if _is_kept():
        _reports.append(report(context, record))
