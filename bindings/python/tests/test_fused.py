# SPDX-License-Identifier: Apache-2.0
"""torch's own optimizers on the CPU: its fused implementation in each step, where nobody chose another."""

import copy

import pytest

torch = pytest.importorskip("torch")

from levels import LEVELS, PATCHES, WITH_MASTERS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import fused_steps  # noqa: E402

OPTIM = torch.optim
FUSES = PATCHES + WITH_MASTERS  # their steps are of FP32 parameters or masters
KINDS = {
    "SGD": lambda p, **k: OPTIM.SGD(p, 0.1, momentum=0.9, **k),
    "Adam": lambda p, **k: OPTIM.Adam(p, 0.01, **k),
    "AdamW": lambda p, **k: OPTIM.AdamW(p, 0.01, **k),
    "Adagrad": lambda p, **k: OPTIM.Adagrad(p, 0.01, **k),
}
HAVE_FUSED = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adam_", "CPU")
needs_fused = pytest.mark.skipif(not HAVE_FUSED, reason="before torch 2.4 its CPU has no fused optimizers")


class Fused:
    """What torch's fused functions were called with."""

    def __init__(self, monkeypatch):
        self.calls = 0
        for name in ("adam", "adamw", "sgd", "adagrad"):
            original = getattr(torch, f"_fused_{name}_", None)
            if original is not None:
                monkeypatch.setattr(torch, f"_fused_{name}_", self.counting(original))

    def counting(self, original):
        def call(*args, **kwargs):
            self.calls += 1
            return original(*args, **kwargs)

        return call


@pytest.fixture
def seen(monkeypatch):
    return Fused(monkeypatch)


def train(level, make, steps=3, model=None):
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    model, optimizer = amp.initialize(model, make(model.parameters()), opt_level=level, verbosity=0, loss_scale=128.0)
    run(model, optimizer, steps)
    return model, optimizer


def run(model, optimizer, steps):
    x = torch.linspace(-1, 1, 12).view(3, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.scale_loss(model(x).float().square().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


@needs_fused
@pytest.mark.parametrize("level", FUSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_default_optimizer_is_fused(kind, level, seen):
    model, _ = train(level, KINDS[kind])
    assert seen.calls == 3
    amp.shutdown()
    wanted, _ = train(level, lambda p: KINDS[kind](p, fused=True))
    amp.shutdown()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), wanted.parameters(), strict=True))


@needs_fused
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_rule(kind):
    """Within a few units in the last place of what torch's loop makes."""
    model, _ = train("O4", KINDS[kind])
    amp.shutdown()
    wanted, _ = train("O4", lambda p: KINDS[kind](p, foreach=False))
    for mine, loops in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, loops, rtol=1e-5, atol=1e-7)


@needs_fused
@pytest.mark.parametrize(
    "make",
    [
        lambda p: OPTIM.Adam(p, fused=False),
        lambda p: OPTIM.Adam(p, foreach=True),
        lambda p: OPTIM.Adam(p, foreach=False),
        lambda p: type("Mine", (OPTIM.Adam,), {})(p),
        lambda p: OPTIM.RMSprop(p),
    ],
    ids=["fused=False", "foreach=True", "foreach=False", "derived", "another"],
)
def test_a_choice_stays(make, seen):
    train("O4", make)
    assert not seen.calls


@pytest.mark.parametrize("level", [level for level in LEVELS if level not in FUSES])
def test_without_libamp_or_in_16_bits_the_optimizer_is_left_alone(level, seen):
    train(level, KINDS["Adam"])
    assert not seen.calls


@needs_fused
def test_nothing_else_sees_it(seen):
    """The choice is not found in the groups, not saved, and ends with amp."""
    model, optimizer = train("O5", KINDS["AdamW"])
    assert [group["fused"] for group in optimizer.param_groups] == [None]
    assert [group["fused"] for group in optimizer.state_dict()["param_groups"]] == [None]
    amp.shutdown()
    calls = seen.calls
    model(torch.zeros(1, 4)).sum().backward()
    optimizer.step()
    assert seen.calls == calls


@needs_fused
def test_a_checkpoint_of_the_loop_goes_on(seen):
    """State that torch's loop made, loaded and stepped; and the other way round."""
    make = KINDS["AdamW"]
    loop = lambda p: make(p, foreach=False)  # noqa: E731
    _, optimizer = train("O4", loop)
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        group["foreach"] = None
    amp.shutdown()
    model, optimizer = train("O4", make, steps=0)
    optimizer.load_state_dict(saved)
    run(model, optimizer, 1)
    assert seen.calls == 1 and {int(state["step"]) for state in optimizer.state.values()} == {4}
    back = copy.deepcopy(optimizer.state_dict())
    amp.shutdown()
    model, optimizer = train("O0", make, steps=0)
    optimizer.load_state_dict(back)
    run(model, optimizer, 1)
    assert seen.calls == 1 and {int(state["step"]) for state in optimizer.state.values()} == {5}


@needs_fused
def test_steps_that_were_counted_in_integers(seen):
    """torch's loop takes what a converted checkpoint has."""
    model, optimizer = train("O4", KINDS["Adam"], steps=1)
    for state in optimizer.state.values():
        state["step"] = state["step"].long()
    run(model, optimizer, 1)
    assert seen.calls == 1 and {int(state["step"]) for state in optimizer.state.values()} == {2}


@needs_fused
def test_a_step_that_raises_leaves_the_groups_as_they_were(monkeypatch):
    model, optimizer = train("O4", KINDS["Adam"])

    def broken(*args, **kwargs):
        raise RuntimeError("no")

    monkeypatch.setattr(torch, "_fused_adam_", broken)
    with pytest.raises(RuntimeError, match="no"):
        run(model, optimizer, 1)
    assert optimizer.param_groups[0]["fused"] is None


@needs_fused
def test_what_the_fused_one_has_not(seen):
    """Doubles, sparse gradients, a step on the tape: that group's step is torch's loop."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2).double())
    groups = [{"params": list(part.parameters())} for part in model]
    optimizer = OPTIM.Adam(groups)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    with fused_steps.Choice(optimizer, True):
        assert [group["fused"] for group in optimizer.param_groups] == [True, None]
        optimizer.step()
    assert seen.calls == 1
    weight = groups[0]["params"][0]
    weight.grad = weight.grad.to_sparse()
    differentiable = OPTIM.Adam([torch.nn.Parameter(torch.ones(1))], differentiable=True)
    with fused_steps.Choice(optimizer, True), fused_steps.Choice(differentiable, True):
        assert [group["fused"] for group in optimizer.param_groups] == [None, None]
        assert differentiable.param_groups[0]["fused"] is None


def step(model, optimizer, gradients):
    for param, gradient in zip(model.parameters(), gradients, strict=True):
        param.grad = gradient
    optimizer.step()


@needs_fused
def test_a_gradient_that_comes_later(seen):
    """A layer that was frozen, or not used: its momentum begins with its first gradient."""
    models = [torch.nn.Linear(4, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [KINDS["SGD"](model.parameters()) for model in models]
    amp.initialize(models[0], optimizers[0], opt_level="O4", verbosity=0)
    for bias in (None, torch.ones(2), torch.full((2,), 2.0)):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, [torch.ones(2, 4), bias])
    assert seen.calls == 2  # all but the one in the middle
    for mine, torchs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, torchs)


@needs_fused
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_with_gaps(kind, seen):
    """A part of a wider tensor, and its gradient of another: strides are equal, and memory in between is others'."""
    wides = [torch.arange(24.0).view(4, 6) for _ in range(2)]
    models = [torch.nn.ParameterList([torch.nn.Parameter(wide[:, :3])]) for wide in wides]
    optimizers = [KINDS[kind](model.parameters()) for model in models]
    amp.initialize(models[0], optimizers[0], opt_level="O4", verbosity=0)
    for _ in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, [torch.arange(24.0).view(4, 6)[:, :3]])
    assert not seen.calls
    assert torch.equal(*wides)


@needs_fused
def test_tensors_of_other_classes():
    class Mine(torch.Tensor):
        pass

    param = torch.ones(3).as_subclass(Mine).requires_grad_()
    param.grad = torch.ones(3)
    optimizer = OPTIM.SGD([param], 0.1)
    with fused_steps.Choice(optimizer, True):
        assert optimizer.param_groups[0]["fused"] is None
