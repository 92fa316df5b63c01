# SPDX-License-Identifier: Apache-2.0
"""A step of libamp's optimizers: formulas and state of src/optim, with torch's list ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from . import rules
from .common import Number, Tensors, batches, converted, copy, scalar, select
from .norms import norm_of_norms, norms_of, scaled
from .rules import Rule, rule_of


@dataclasses.dataclass
class _Step:
    """Values common to all batches. A list has one entry for each tensor."""

    rule: Rule
    counts: Any  # steps before: a number, a list of them, or a tensor of one dimension or none
    inv_scale: Number
    factor: Number
    take: Any  # a bool on the device, True to step, or None to step always
    norms: Any  # norms of the gradients as a tensor, or None to compute them
    limit: Number = 1.0  # LAMB's factor that limits the norm of all gradients
    first: Any = False
    corrections: tuple[Any, Any] = (1.0, 1.0)


def _cut(value: Any, part: slice) -> Any:
    of_each = isinstance(value, list) or (isinstance(value, torch.Tensor) and value.dim() == 1)
    return value[part] if of_each else value


@torch.no_grad()
def optimizer_step(
    rule: str | Rule,
    params: Tensors,
    grads: Tensors,
    state: Mapping[str, Tensors] | None,
    *,
    steps: Any,
    model_params: Tensors | None = None,
    inv_scale: Number = 1.0,
    grad_factor: Number = 1.0,
    found_inf: Any = None,
    grad_norm: Number | None = None,
    grad_norms: Any = None,
    **numbers: Any,
) -> None:
    """Steps every tensor, as libamp.kernels.optimizer_step does.

    rule: its name, with numbers and flags by name, or a Rule. state: lists of FP32 moments by torch's names. steps:
    number of steps so far, a list of them, or an int64 tensor with one element or one for each tensor, which is
    advanced. model_params: the 16-bit copies of FP32 params, None or entries None for none. A tensor whose gradient is
    None, and its step, do not change.

    found_inf: a tensor of one element. If it is nonzero or NaN, nothing changes. grad_norm, grad_norms: norms of the
    gradients * inv_scale * grad_factor, for LAMB, and for NovoGrad and LARC. None computes them.
    """
    rule = rule if isinstance(rule, Rule) else rule_of(rule, **numbers)
    which = [i for i, grad in enumerate(grads) if grad is not None]
    if not which:
        return

    def pick(values: Tensors) -> list[Any]:
        return [None if values[i] is None else values[i].detach() for i in which]

    moments = {name: pick((state or {})[name]) for name in rule.moments()}
    low = [None] * len(which) if model_params is None else pick(model_params)
    stepped, given = pick(params), pick(grads)
    by = grad_factor if isinstance(grad_factor, torch.Tensor) or grad_factor else 1.0
    take = None if found_inf is None else found_inf.detach().reshape(()) == 0
    counts, views = _counts(steps, which)
    norms = None if grad_norms is None else _picked(grad_norms.detach().reshape(-1), which)
    step = _Step(rule, counts, scalar(inv_scale), scalar(by), take, norms)
    step.first = rules.begins(step.counts)
    step.corrections = rules.corrections(rule, step.counts, stepped[0].device)
    step.limit = _limit(step, given, grad_norm)
    for part in batches(stepped):
        own = {name: values[part] for name, values in moments.items()}
        _run(step, part, stepped[part], given[part], low[part], own)
    _advance(views, take)


def _counts(steps: Any, which: list[int]) -> tuple[Any, list[Any]]:
    """Returns the step counts of these tensors, and the tensors to advance if they are on the device."""
    if not isinstance(steps, torch.Tensor):
        return ([int(steps[i]) for i in which] if isinstance(steps, (list, tuple)) else int(steps)), []
    words = steps.detach().reshape(-1)
    if words.numel() == 1:
        return words[0], [words]
    if len(which) == words.numel():
        return words, [words]
    return _picked(words, which), [words[i] for i in which]


def _picked(values: Any, which: list[int]) -> Any:
    return values if len(which) == values.numel() else torch.stack([values[i] for i in which])


def _limit(step: _Step, grads: list[Any], norm: Any) -> Number:
    if step.rule.kind != "lamb" or not step.rule.max_grad_norm > 0.0:
        return 1.0
    if norm is None:
        parts = [norms_of(scaled(grads[part], step.inv_scale, step.factor)) for part in batches(grads)]
        norm = norm_of_norms(torch.cat(parts)).float()
    return rules.limit(step.rule.max_grad_norm, norm)


def _advance(words: list[Any], take: Any) -> None:
    if words:
        torch._foreach_add_(words, 1 if take is None else [take.to(words[0].dtype).expand_as(one) for one in words])


def _run(
    step: _Step, part: slice, params: list[Any], grads: list[Any], low: list[Any], moments: dict[str, list[Any]]
) -> None:
    """Steps a batch. A step that may be skipped works on copies, made where it happens."""
    skips = step.take is not None
    p = converted(params, torch.float32, fresh=skips)
    work = {name: converted(values, torch.float32, fresh=skips) for name, values in moments.items()}
    counts = _cut(step.counts, part)
    rules.Batch(
        rule=step.rule,
        p=p,
        g=scaled(grads, step.inv_scale, step.factor),
        moments=work,
        first=_cut(step.first, part),
        corrections=(_cut(step.corrections[0], part), _cut(step.corrections[1], part)),
        limit=step.limit,
        norms=None if step.norms is None else step.norms[part],
        remainder2=lambda: rules.one_minus_power(step.rule.beta2, counts, params[0].device),
    ).step()
    halves = [i for i, half in enumerate(low) if half is not None]
    _store([low[i] for i in halves], [p[i] for i in halves], step.take)
    _store(params, p, step.take)
    for name, values in moments.items():
        _store(values, work[name], step.take)


def _store(to: list[Any], of: list[Any], take: Any) -> None:
    """Stores `of` in `to`. With `take`, `of` is consumed if it has to's type."""
    if take is None:
        copy(to, of)
        return
    made = [one if d.dtype == one.dtype else torch.empty_like(d) for d, one in zip(to, of, strict=True)]
    copy(made, of)
    select(to, made, take)
