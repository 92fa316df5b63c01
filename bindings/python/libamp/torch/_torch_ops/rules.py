# SPDX-License-Identifier: Apache-2.0
"""The rules of amp_optim.h on a batch of FP32 parameters. Names are those of struct amp__update."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from ... import _core
from .common import Number, converted, copy, double_of, each, is_one, select, single
from .norms import norms_of

_RULES = _core.optim_rules()
MOMENTS = {name: tuple(moments) for name, (moments, _) in _RULES.items()}


@dataclasses.dataclass
class Rule:
    """An amp_optim: the name of its kind, its numbers, its flags."""

    kind: str
    lr: Number = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    max_grad_norm: float = 0.0
    trust_coefficient: float = 0.0
    nesterov: bool = False
    decay_after_momentum: bool = False
    bias_correction: bool = False
    amsgrad: bool = False
    decoupled: bool = False
    grad_averaging: bool = False
    nvlamb: bool = False
    init_zero: bool = False
    clip: bool = False

    def moments(self) -> tuple[str, ...]:
        """Returns the names of the moments that the rule uses with these numbers."""
        if self.kind in ("sgd", "larc") and self.momentum == 0.0:
            return ()
        if self.kind in ("adam", "adamw") and not self.amsgrad:
            return MOMENTS[self.kind][:2]
        return MOMENTS[self.kind]


def rule_of(kind: str, *, betas: tuple[float, float] | None = None, **numbers: Any) -> Rule:
    """Returns a rule by name, with the numbers of amp_optim_defaults by default."""
    if kind not in _RULES:
        raise ValueError(f"rule: there is no {kind!r}: libamp has {', '.join(_RULES)}")
    if betas is not None:
        numbers["beta1"], numbers["beta2"] = betas
    return Rule(kind, **{**_RULES[kind][1], **numbers})


# ---- numbers of a step: `counts` is the number of steps before: a number, a list of them, or a tensor of one dimension
# (a number for each tensor) or of none. A list or one dimension gives results for each tensor, too ----


def begins(counts: Any) -> Any:
    """Returns whether this is the first step of a tensor."""
    if isinstance(counts, list):
        return [count == 0 for count in counts]
    return counts == 0


def _power(base: float, n: int) -> float:
    """Returns base to the power n, with the bits of amp__power."""
    power = 1.0
    while n:
        if n & 1:
            power *= base
        n >>= 1
        base *= base
    return power


def one_minus_power(beta: float, counts: Any, device: Any) -> Any:
    """Returns 1 - beta^(counts + 1) in double, or as near as the device permits."""
    if isinstance(counts, int):
        return 1.0 - _power(beta, counts + 1)
    if isinstance(counts, list):
        known = {count: 1.0 - _power(beta, count + 1) for count in set(counts)}
        return next(iter(known.values())) if len(known) == 1 else [known[count] for count in counts]
    steps = (counts + 1).to(device=device, dtype=double_of(device))
    return -torch.expm1(steps * math.log(beta)) if beta > 0.0 else torch.ones_like(steps)


def corrections(rule: Rule, counts: Any, device: Any) -> tuple[Any, Any]:
    """Returns 1 - beta1^t and 1 - beta2^t, rounded."""
    if not rule.bias_correction:
        return 1.0, 1.0
    exact = [one_minus_power(beta, counts, device) for beta in (rule.beta1, rule.beta2)]
    return each_of(exact[0]), each_of(exact[1])


def each_of(value: Any) -> Any:
    """Returns the value rounded, for list ops. One for each tensor becomes a list."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dim() == 0 else list(value.float().unbind())
    return [single(one) for one in value] if isinstance(value, list) else single(value)


def limit(most: float, norm: Number) -> Number:
    """Returns LAMB's factor that limits the norm of all gradients."""
    if not isinstance(norm, torch.Tensor):
        return single(most / single(norm)) if single(norm) > most else 1.0
    wide = norm.detach().reshape(()).to(double_of(norm.device))
    return torch.where(wide > most, most / wide, torch.ones_like(wide)).float()


def _vector(value: Any, like: Any) -> Any:
    """Returns a number, or one for each tensor beside the vector `like`."""
    if not isinstance(value, list):
        return value
    return torch.stack([torch.full((), one, dtype=like.dtype, device=like.device) for one in value])


# ---- a batch ----


@dataclasses.dataclass
class Batch:
    """A batch in a step. p and moments, FP32, are written. g, the unscaled FP32 gradients, is read."""

    rule: Rule
    p: list[Any]
    g: list[Any]
    moments: dict[str, list[Any]]
    first: Any
    corrections: tuple[Any, Any]
    limit: Number
    norms: Any
    remainder2: Callable[[], Any]  # 1 - beta2^t, in double

    def step(self) -> None:
        rules = {
            "sgd": self._sgd,
            "adam": self._adam,
            "adamw": self._adam,
            "lamb": self._lamb,
            "novograd": self._novograd,
            "adagrad": self._adagrad,
            "larc": self._larc,
        }
        if self.rule.kind not in rules:
            raise NotImplementedError(f"rule: no step of {self.rule.kind!r} is written over torch's operators")
        direction, lr = rules[self.rule.kind]()
        each("sub_", self.p, each("mul", direction, lr))

    def _decayed(self, to: list[Any], applies: bool = True) -> list[Any]:
        """Returns to + weight_decay * p."""
        if not applies or single(self.rule.weight_decay) == 0.0:
            return to
        decay = each("mul", self.p, self.rule.weight_decay)
        each("add_", decay, to)
        return decay

    def _average(self, moment: list[Any], value: list[Any], beta: float, rest: float) -> None:
        """Computes moment = beta * moment + rest * value."""
        each("mul_", moment, beta)
        each("add_", moment, value if rest == 1.0 else each("mul", value, rest))

    def _rest1(self) -> float:
        averages = self.rule.kind not in ("lamb", "novograd") or self.rule.grad_averaging
        return 1.0 - self.rule.beta1 if averages else 1.0

    # ---- rules: the direction and its factor ----

    def _sgd(self, ratio: Any = 1.0) -> tuple[list[Any], Any]:
        rule = self.rule
        u = self._decayed(self.g, not rule.decay_after_momentum)
        u = u if is_one(ratio) else each("mul", u, ratio)
        if rule.momentum != 0.0:
            m = self.moments["momentum_buffer"]
            self._gather(m, u)
            if rule.nesterov:
                ahead = each("mul", m, rule.momentum)
                each("add_", ahead, u)
                u = ahead
            else:
                u = m
        return self._decayed(u, rule.decay_after_momentum), rule.lr

    def _gather(self, m: list[Any], u: list[Any]) -> None:
        """Updates the momentum m. In a first step it becomes u, without dampening."""
        first = self.first
        if isinstance(first, torch.Tensor):
            begun = later = list(range(len(m)))
        else:
            of_each = first if isinstance(first, list) else [first] * len(m)
            begun = [i for i, begins in enumerate(of_each) if begins]
            later = [i for i, begins in enumerate(of_each) if not begins]
        self._average([m[i] for i in later], [u[i] for i in later], self.rule.momentum, 1.0 - self.rule.dampening)
        to, of = [m[i] for i in begun], [u[i] for i in begun]
        if isinstance(first, torch.Tensor):
            takes = first if first.dim() == 0 else list(first.unbind())
            select(to, converted(of, torch.float32, fresh=True), takes)
        else:
            copy(to, of)

    def _adam_moments(self, g: list[Any]) -> None:
        g = self._decayed(g, not self._is_decoupled())
        self._average(self.moments["exp_avg"], g, self.rule.beta1, self._rest1())
        squares = each("mul", g, 1.0 - self.rule.beta2)
        each("mul_", squares, g)
        each("mul_", self.moments["exp_avg_sq"], self.rule.beta2)
        each("add_", self.moments["exp_avg_sq"], squares)

    def _is_decoupled(self) -> bool:
        return self.rule.decoupled or self.rule.kind == "adamw"

    def _adam_direction(self, v: list[Any]) -> list[Any]:
        """Returns m / correction1 / (sqrt(v / correction2) + eps)."""
        of_m, of_v = self.corrections
        root = each("sqrt", v) if is_one(of_v) else each("div", v, of_v)
        if not is_one(of_v):
            each("sqrt_", root)
        each("add_", root, self.rule.eps)
        m = self.moments["exp_avg"]
        u = each("div", m if is_one(of_m) else each("div", m, of_m), root)
        return self._decayed(u, self._is_decoupled())

    def _adam(self) -> tuple[list[Any], Any]:
        self._adam_moments(self.g)
        v = self.moments["exp_avg_sq"]
        if self.rule.amsgrad:
            each("maximum_", self.moments["max_exp_avg_sq"], v)
            v = self.moments["max_exp_avg_sq"]
        return self._adam_direction(v), self.rule.lr

    def _lamb(self) -> tuple[list[Any], Any]:
        rule = self.rule
        self._adam_moments(self.g if is_one(self.limit) else each("mul", self.g, self.limit))
        u = self._adam_direction(self.moments["exp_avg_sq"])
        if rule.weight_decay == 0.0 and not rule.nvlamb:
            return u, rule.lr
        of_p, of_u = self._norms(self.p), self._norms(u)
        rates = rule.lr * (of_p / of_u)
        plain = torch.zeros_like(rates) + rule.lr
        return u, list(torch.where((of_p != 0) & (of_u != 0), rates, plain).float().unbind())

    def _norms(self, tensors: list[Any]) -> Any:
        """Returns the norms rounded to FP32."""
        norms = norms_of(tensors)
        return norms.float().to(norms.dtype)

    def _norms_of_grads(self) -> Any:
        if self.norms is None:
            return self._norms(self.g)
        return self.norms.float().to(double_of(self.norms.device))

    def _adagrad(self) -> tuple[list[Any], Any]:
        g, h = self._decayed(self.g, not self.rule.decoupled), self.moments["sum"]
        each("add_", h, each("mul", g, g))
        root = each("sqrt", h)
        each("add_", root, self.rule.eps)
        return self._decayed(each("div", g, root), self.rule.decoupled), self.rule.lr

    def _novograd(self) -> tuple[list[Any], Any]:
        by, g, m = self._denominators(), self.g, self.moments["exp_avg"]
        if not self.rule.decoupled:
            g = self._decayed(each("div", g, by))
        self._average(m, g, self.rule.beta1, self._rest1())
        of_m = self.corrections[0]
        u = m if is_one(of_m) else each("div", m, of_m)
        if self.rule.decoupled:
            u = self._decayed(each("div", u, by))
        return u, self.rule.lr

    def _denominators(self) -> list[Any]:
        """Returns the new stored norm and the divisor of the gradients."""
        rule, kept = self.rule, self.moments["exp_avg_sq"]
        norm = self._norms_of_grads()
        before = torch.stack([one.reshape(()) for one in kept]).to(norm.dtype)
        if norm.dtype == torch.float64:
            after = torch.sqrt(rule.beta2 * (before * before) + (1.0 - rule.beta2) * (norm * norm))
        else:
            after = torch.hypot(rule.beta2**0.5 * before, (1.0 - rule.beta2) ** 0.5 * norm)
        if not rule.init_zero:
            after = self._begin_with(norm, after)
        after = after.float()
        copy(kept, [one.reshape(to.shape) for one, to in zip(after.unbind(), kept, strict=True)])
        correction = _vector(self.remainder2(), norm) if rule.bias_correction else 1.0
        root = torch.sqrt(correction) if isinstance(correction, torch.Tensor) else math.sqrt(correction)
        return list((after.to(norm.dtype) / root + rule.eps).float().unbind())

    def _begin_with(self, norm: Any, after: Any) -> Any:
        if isinstance(self.first, list):
            return torch.stack([norm[i] if begins else after[i] for i, begins in enumerate(self.first)])
        if isinstance(self.first, torch.Tensor):
            return torch.where(self.first, norm, after)
        return norm if self.first else after

    def _larc(self) -> tuple[list[Any], Any]:
        rule = self.rule
        of_p, of_g = self._norms(self.p), self._norms_of_grads()
        ratio = rule.trust_coefficient * of_p / (of_g + rule.weight_decay * of_p + rule.eps)
        one = torch.ones_like(ratio)
        if rule.clip:
            ratio = torch.where(ratio < rule.lr, ratio / rule.lr, one)
        ratio = torch.where((of_p == 0) | (of_g == 0), one, ratio).float()
        return self._sgd(list(ratio.unbind()))
