# SPDX-License-Identifier: Apache-2.0
"""Casts of weights are of the weights as they are, whoever wrote them and however: beside the same without kept casts,
to the bit. A write through .data leaves a tensor's version as it is."""
import copy
import threading

import casting
import pytest

torch = casting.torch
from levels import PATCHES  # noqa: E402
from libamp.torch import amp, optimizers  # noqa: E402
from torch import nn  # noqa: E402

LEVELS = PATCHES


class Net(nn.Module):
    """The convolution alone trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(1, 3, 3), nn.Linear(48, 2)
        self.fc.requires_grad_(False)

    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)).flatten(1))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 1, 6, 6, generator=generator), torch.randn(6, 2, generator=generator)


class ThroughData(torch.optim.SGD):
    """As optimizers were written for years."""

    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            p.data.add_(p.grad.data, alpha=-self.param_groups[0]["lr"])


class ThroughForeach(ThroughData):
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        torch._foreach_add_([p.data for p in params], [p.grad for p in params], alpha=-self.param_groups[0]["lr"])


class ThroughNumpy(ThroughData):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.detach().numpy()[...] -= self.param_groups[0]["lr"] * p.grad.numpy()


def kinds():
    """Each optimizer of torch, one tensor at a time, over lists, and fused, as far as it has them."""
    yield from (("ThroughData", ThroughData, {}), ("ThroughForeach", ThroughForeach, {}),
                ("ThroughNumpy", ThroughNumpy, {}), ("FusedSGD", optimizers.FusedSGD, {}),
                ("FusedAdam", optimizers.FusedAdam, {}))
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"):
        kind = getattr(torch.optim, name)
        for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            try:
                kind([nn.Parameter(torch.zeros(1))], lr=0.01, **how)
            except (TypeError, RuntimeError, ValueError):
                continue
            yield f"{name} {next(iter(how)) if any(how.values()) else 'plain'}", kind, how


KINDS = {name: (kind, how) for name, kind, how in kinds()}


def train(level, kind, how, way, cache):
    model, (x, y) = Net(), data()
    optimizer = kind(model.conv.parameters(), lr=1.0 if kind is torch.optim.Adadelta else 0.01, **how)
    if way == "bracket":
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0, cache=cache)
    else:
        amp.initialize(model, opt_level=level, verbosity=0, cache=cache)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=way == "GradScaler")
    for _ in range(3):
        loss = nn.functional.mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        if way == "bracket":
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    weight = model.conv.weight.detach().clone()
    amp.shutdown()
    return weight


def test_there_are_optimizers_of_each_kind():
    assert {"SGD fused", "SGD foreach", "SGD plain", "Adam fused", "AdamW foreach", "RMSprop plain"} <= set(KINDS)


# GradScaler and no scaler at all meet who writes weights one by one, over lists, and in a kernel that skips by itself
WRITERS = [name for name in KINDS if name.startswith(("Through", "Fused", "SGD ", "Adam "))]
WAYS = [(name, "O1", "bracket") for name in KINDS]
WAYS += [(name, level, way) for name in WRITERS for level, way in (("O1", "GradScaler"), ("O4", "plain"))]


@pytest.mark.parametrize(("name", "level", "way"), WAYS)
def test_a_convolution_trains_alone(name, level, way):
    kind, how = KINDS[name]
    kept, fresh = (train(level, kind, how, way, cache) for cache in (True, False))
    assert torch.equal(kept, fresh)
    assert (kept - Net().conv.weight).abs().max() > 1e-3


WRITES = {
    "data": lambda p: p.data.mul_(0.5),
    "copy_": lambda p: p.data.copy_(torch.full_like(p, 0.125)),
    "foreach": lambda p: torch._foreach_mul_([p.data], 0.5),
    "other memory": lambda p: setattr(p, "data", torch.full_like(p, 0.25)),
    "numpy": lambda p: p.detach().numpy().fill(0.5),
    "slice": lambda p: p.data[:1].zero_(),
    "out": lambda p: torch.mul(p.data, 0.5, out=p.data),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("level", LEVELS)
def test_evaluate_edit_evaluate(level, write):
    def run(cache):
        model, x = Net(), data()[0]
        amp.initialize(model, opt_level=level, verbosity=0, cache=cache)
        model.eval()
        with torch.no_grad():
            outs = [model(x)]
            for p in model.conv.parameters():
                WRITES[write](p)
                outs.append(model(x))
        amp.shutdown()
        return outs

    kept, fresh = run(True), run(False)
    assert all(torch.equal(a, b) for a, b in zip(kept, fresh))
    assert not torch.equal(fresh[0], fresh[1]) and not torch.equal(fresh[1], fresh[2])


class Momentum(nn.Module):
    """Updates its target inside of forward, between two uses of it, as contrastive learners do."""

    def __init__(self):
        super().__init__()
        self.online = Net()
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        before = self.target(x)
        for mine, theirs in zip(self.target.parameters(), self.online.parameters()):
            mine.data.mul_(0.25).add_(theirs.data, alpha=0.5)
        return self.online(x), before, self.target(x)


@pytest.mark.parametrize("level", LEVELS)
def test_a_target_network(level):
    def run(cache):
        model, x = Momentum(), data()[0]
        optimizer = ThroughData(model.online.conv.parameters(), lr=0.1)
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=8.0, cache=cache)
        outs = []
        for _ in range(3):
            online, before, after = model(x)
            outs += [before.detach().float(), after.detach().float()]
            optimizer.zero_grad()
            with amp.scale_loss((online.float() - 1).pow(2).mean(), optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        amp.shutdown()
        return outs

    kept, fresh = run(True), run(False)
    assert all(torch.equal(a, b) for a, b in zip(kept, fresh))
    assert not torch.equal(fresh[0], fresh[1])


@pytest.mark.parametrize("level", LEVELS)
def test_while_another_thread_is_in_a_forward(level):
    """Its scope keeps casts alive; ours begins with none of them."""
    model, x = Net(), data()[0]
    started, done = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, out):
            if threading.current_thread() is not threading.main_thread():
                started.set()
                assert done.wait(60)
            return out

    model.wait = Waits()
    plain = model.forward
    model.forward = lambda x: model.wait(plain(x))
    amp.initialize(model, opt_level=level, verbosity=0)
    with torch.no_grad():
        other = threading.Thread(target=lambda: model(x))
        other.start()
        try:
            assert started.wait(60)
            outs = [model(x)]
            model.conv.weight.data.zero_()
            model.conv.bias.data.zero_()
            outs.append(model(x))
        finally:
            done.set()
            other.join()
        assert not torch.equal(*outs)
        assert torch.equal(outs[1], model(torch.zeros_like(x)))
