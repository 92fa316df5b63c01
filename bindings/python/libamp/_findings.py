# SPDX-License-Identifier: Apache-2.0
"""Mistakes of scripts: their table, the warnings with the line of the script, and the record of those already
reported."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, NamedTuple

from ._environment import switch

# code: (title, reason, advice). docs/reference/mistakes.md is generated from it, by
# tests/docs/check_mistakes.py . --write.
# A code is never reused.
FINDINGS: dict[str, tuple[str, str, str]] = {
    "AMP-M30": (
        "backward ran outside of scale_loss",
        "Its gradients do not have the loss scale, so that small ones became zero in 16 bits, nobody looks for "
        "overflows in them, and at O2 and O5 they never reach the masters: the step does not see them.",
        "call backward inside the block, on what it gives: with amp.scale_loss(loss, optimizer) as scaled_loss: "
        "scaled_loss.backward()",
    ),
    "AMP-M31": (
        "backward ran on the loss, not on the scaled loss",
        "The end of the block divides gradients by the loss scale, which these never had: they come out as many "
        "times too small.",
        "call backward on what the block gives: with amp.scale_loss(loss, optimizer) as scaled_loss: "
        "scaled_loss.backward()",
    ),
    "AMP-M32": (
        "the model's gradients were changed, not the masters'",
        "At O2 and O5 the optimizer steps FP32 masters with gradients of their own. Those of the 16-bit "
        "parameters are left over from backward, and still scaled: clipping them, or adding to them, changes "
        "nothing.",
        "take amp.master_params(optimizer) in the place of model.parameters(), after the block of scale_loss",
    ),
    "AMP-M33": (
        "an optimizer that initialize was not given steps the model",
        "It steps after overflows too, on gradients that may still be scaled, and at O2 and O5 on 16-bit weights,"
        " which the masters of the other optimizer then overwrite.",
        "give every optimizer of the model to amp.initialize, and use the ones that it returns; one that is made "
        "anew needs amp.shutdown and another amp.initialize, and further parameters optimizer.add_param_group",
    ),
    "AMP-M34": (
        "a parameter was added that no optimizer of the model has",
        "It came after amp.initialize, has a gradient, and none of the optimizers that initialize was given "
        "updates it.",
        "add it before amp.initialize and before the optimizer is made, or give it to optimizer.add_param_group",
    ),
    "AMP-M35": (
        "the model's types were changed after initialize",
        "The level decides which types a model has: half() leaves weights that no master stands behind, and "
        "float() takes the level's 16 bits away.",
        "leave the types to opt_level: no half(), float(), or to(dtype) after amp.initialize",
    ),
    "AMP-M36": (
        "torch.autocast around an initialised model",
        "Both cast by lists of their own: what the level keeps in FP32 autocast lowers again.",
        "take torch.autocast out, or call amp.initialize with enabled=False",
    ),
    "AMP-M37": (
        "GradScaler steps an initialised optimizer",
        "Two scales are at work: GradScaler's is in no gradient that scale_loss has unscaled, or no scale_loss "
        "has unscaled any.",
        "take GradScaler out: with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward(), then "
        "optimizer.step()",
    ),
    "AMP-M38": (
        "a step without a scale_loss since the last",
        "There are gradients, and no block of scale_loss has unscaled them or looked for overflows.",
        "run each backward whose gradients are stepped on inside amp.scale_loss with this optimizer, and step "
        "once after",
    ),
    "AMP-M39": (
        "a copy of an initialised model is trained",
        "A copy has the level's types and casts, but neither masters nor an optimizer that unscales its "
        "gradients.",
        "copy the model before amp.initialize and give both to it, or run the copy under torch.no_grad()",
    ),
    "AMP-M40": (
        "the loss reaches none of the optimizer's parameters",
        "Backward ran inside the block, and none of the parameters that the optimizer updates has a gradient: "
        "nothing is trained.",
        "see that the loss comes from the model that amp.initialize was given, without detach() or no_grad() "
        "between, and that the block names its optimizer",
    ),
    "AMP-M41": (
        "gradients were clipped before they were unscaled",
        "Until the block of scale_loss ends gradients have the loss scale, so that the limit is as many times too "
        "tight, and masters have none yet.",
        "clip after the block: torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), limit), then "
        "optimizer.step()",
    ),
    "AMP-M42": (
        "gradients were cleared between backward and step",
        "What zero_grad throws away there no step sees: nothing is trained.",
        "call zero_grad before the block of scale_loss, or after the step",
    ),
    "AMP-M47": (
        "a 16-bit parameter and its master were both written",
        "Since they agreed last the script wrote both, with different values, and nobody knows which it wrote "
        "last: the master took the parameter's values where they differ.",
        "write one of them; after a write to the parameter take the masters anew from amp.master_params(optimizer) "
        "or model.state_dict()",
    ),
    "AMP-M48": (
        "an average of weights is kept in 16 bits",
        "What an average moves by in a step is less than 16 bits resolve, and is rounded away: one with a decay of "
        "0.999 stays behind the weights, or where it is.",
        "average amp.master_params(optimizer), or model.state_dict(), which are FP32, in the place of the model's "
        "parameters",
    ),
    "AMP-M49": (
        "a 16-bit parameter on a GPU was written through .data",
        "torch does not count such writes, and a step would write the master's value over them. The first two "
        "iterations look for them on a GPU: this parameter's are kept from now on, at the cost of some kernels in each "
        "step. A parameter that is first written so in a later iteration loses the write.",
        "write the parameter itself: with torch.no_grad(): p.clamp_(...), not p.data.clamp_(...)",
    ),
}

# The library's advice is for C adapters. code: the beginning of that advice, and the advice for scripts.
MENDS: dict[str, tuple[str, str]] = {
    "AMP-M05": (
        "describe its step in amp_optimizer.steps",
        "call step of the optimizer that amp.initialize returned; one that is made anew needs amp.shutdown and "
        "another amp.initialize",
    ),
    "AMP-M06": (
        "list it in amp_optimizer.params",
        "give it to the optimizer before amp.initialize, or to optimizer.add_param_group",
    ),
    "AMP-M08": (
        "see that the hook cast records on the tape",
        "see that the forward uses them, without detach() or no_grad() on the way to the loss; nothing is wrong "
        "where the model really did not use them",
    ),
    "AMP-M85": (
        "set AMP_OBSERVE=every=1, which names",
        "run it with AMP_OBSERVE=every=1, which names the op where the overflow begins, or amp.observe(model, every=1) "
        "and amp.culprit(); where the scale is still on its way to one that fits, run longer, or start lower "
        "(init_scale of amp.initialize)",
    ),
    "AMP-M15": (
        "set amp_config.check_finite",
        "look for the first op that makes them (torch.autograd.detect_anomaly), or take a level that scales the loss",
    ),
    "AMP-M63": (
        "put backward between amp_scale_loss_begin",
        "run backward inside the block: with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()",
    ),
    "AMP-M65": (
        "look for NaN or infinity in the first op",
        "look for NaN or infinity in the first op, input or loss that has one (max_skips of amp.initialize sets the "
        "limit)",
    ),
    "AMP-M66": (
        "call its step slot, or amp_step_begin",
        "call optimizer.step() of the optimizer that amp.initialize returned; nothing is wrong where a step is made "
        "of so many brackets",
    ),
    "AMP-M68": (
        "clear gradients after the step, or before",
        "call zero_grad of the optimizer after its step, or before the block of scale_loss",
    ),
    "AMP-M77": (
        "set amp_config.loss_scale = AMP_DYNAMIC",
        'give loss_scale="dynamic" for a scale that starts there, or loss_scale that number for one that stays; leave '
        "init_scale out where neither is wanted",
    ),
}


def for_script(text: str) -> str:
    """Returns a message of the library with advice for a script instead of an adapter in C."""
    for code, (begins, mend) in MENDS.items():
        seen, found, _ = text.partition(begins)
        if found and code in seen:
            return seen + mend
    return text


class FindingWarning(UserWarning):
    """Warns of a mistake, with its code, at the line of the script. docs/reference/mistakes.md lists all codes."""


class Place(NamedTuple):
    """A line of the script."""

    filename: str
    lineno: int
    module: str = "__main__"


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


_checked: list[Finding] = []  # all findings while LIBAMP_CHECK is set
_reports: list[str] = []  # reports of ended contexts


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
        """Reports a finding of the library, whose message begins with its code."""
        explained = self.has("AMP-M40", "AMP-M42") or not self.missing
        if message.startswith("AMP-M08") and explained and "underflow" not in message:
            self._moot.add(message)
        else:
            self._record(message[:7], message, for_script(message), None)

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
        if is_strict():
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
            found.append(heard._replace(subject=subject, message=for_script(message), times=times))
    return found + [finding for (code, _), finding in record.found.items() if code in FINDINGS]


def report(context: Any, record: Record) -> str:
    """Returns the library's report with the script's findings before its last line."""
    lines = context.health().rstrip("\n").split("\n")[:-1]
    # checks that work for scripts but not for adapters (AMP-M31, AMP-M34)
    lines = [line for line in lines if not line.startswith("cannot be seen: ")]
    lines = [for_script(line) for line in lines if not record.is_moot(line)]
    found = listed(context, record)
    for finding in found:
        at = f"{finding.filename}:{finding.lineno}: " if finding.filename else ""
        lines = [at + line if finding.message in line else line for line in lines]
        if finding.code in FINDINGS:
            lines.append(at + finding.message)
    lines.append("sound" if not found else "1 finding" if len(found) == 1 else f"{len(found)} findings")
    return "\n".join(lines) + "\n"


def ends(context: Any, record: Record) -> None:
    """Keeps the report of a context that ends, if one is wanted at the end of the script."""
    if is_strict():
        _reports.append(report(context, record))
