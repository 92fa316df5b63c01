# SPDX-License-Identifier: Apache-2.0
"""The host's cost of an iteration once the looks of the first ones are over, counted: how often a parameter is touched,
how many calls Python sees."""

import collections
import sys
from typing import ClassVar

import pytest
import torch
from libamp.torch import amp, optimizers
from torch import nn

WARM = 9  # iterations; a few brackets later (the 16th, the 32nd, ...) look at gradients again


class Touched(nn.Parameter):
    """Each attribute that is read or written is counted, and each look at its elements as one of `_local_tensor`."""

    counts: ClassVar[collections.Counter] = collections.Counter()

    def __getattribute__(self, name):
        if name != "__torch_function__":
            Touched.counts[name] += 1
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        Touched.counts[f"{name} ="] += 1
        super().__setattr__(name, value)


class Plain(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        pass


class Model(nn.Module):
    def __init__(self, n, kind):
        super().__init__()
        self.params = nn.ParameterList([kind(torch.ones(3)) for _ in range(n)])

    def forward(self, x):
        return x


def _start(n, level, kind=nn.Parameter, make=Plain, **settings):
    model = Model(n, kind)
    return amp.initialize(model, make(model.parameters()), opt_level=level, verbosity=0, **settings)


def _iterate(model, optimizer, before=lambda: None, after=lambda: None):
    params = list(model.parameters())
    grads = [torch.full_like(param, 0.5) for param in params]
    loss = torch.ones((), requires_grad=True) * 1.0
    optimizer.zero_grad()
    before()
    with amp.scale_loss(loss, optimizer):
        after()
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        before()
    optimizer.step()
    after()


@pytest.mark.parametrize(
    "level, settings, bracket_and_step",
    [("O1", {"loss_scale": 1.0}, 0), ("O4", {}, 0), ("O0", {}, 0), ("O1", {}, 3), ("O2", {}, 9), ("O5", {}, 9)],
)
def test_a_parameter_is_touched_so_often(level, settings, bracket_and_step):
    """None of those that nothing is scaled for; those with a master beside what the master itself is touched."""
    n = 8
    model, optimizer = _start(n, level, Touched, **settings)
    counts = collections.Counter()
    for _ in range(WARM):
        _iterate(model, optimizer)
    _iterate(model, optimizer, Touched.counts.clear, lambda: counts.update(Touched.counts))
    amp.shutdown()
    assert sum(counts.values()) <= n * bracket_and_step, counts


def _calls(n, level, make, **settings):
    model, optimizer = _start(n, level, make=make, **settings)
    seen = []

    def profile(frame, event, argument):
        if event in ("call", "c_call"):
            seen.append(argument.__name__ if event == "c_call" else frame.f_code.co_qualname)

    for _ in range(WARM):
        _iterate(model, optimizer)
    _iterate(model, optimizer, lambda: sys.setprofile(profile), lambda: sys.setprofile(None))
    amp.shutdown()
    return seen


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified names")
@pytest.mark.parametrize("level, settings", [("O0", {}), ("O1", {}), ("O4", {}), ("O2", {}), ("O5", {})])
def test_pythons_calls_do_not_grow_with_the_parameters(level, settings):
    few, many = (_calls(n, level, Plain, **settings) for n in (3, 30))
    assert few == many
    assert 0 < len(few) < 220


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified names")
@pytest.mark.parametrize("make", ["FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad"])
def test_our_optimizers_call_little_for_a_parameter(make):
    few, many = (
        _calls(n, "O5", lambda params: getattr(optimizers, make)(params, lr=0.1)) for n in (3, 30)
    )
    growth = collections.Counter(many) - collections.Counter(few)
    assert sum(growth.values()) <= 27 * 12, growth


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_of_a_late_block_that_raises(clears):
    """They go where zero_grad had taken those before away; else they stay with what backward added."""
    model, optimizer = _start(3, "O4")
    for _ in range(WARM):
        _iterate(model, optimizer)
    if clears:
        optimizer.zero_grad()
    params = list(model.parameters())
    before = [param.grad for param in params]
    with pytest.raises(ZeroDivisionError), amp.scale_loss(torch.ones((), requires_grad=True) * 1.0, optimizer):
        for param in params:
            param.grad = torch.ones_like(param) if param.grad is None else param.grad.add_(1.0)
        raise ZeroDivisionError
    after = [param.grad for param in params]
    amp.shutdown()
    assert all(a is b for a, b in zip(after, before, strict=True)) and (after[0] is None) is clears
