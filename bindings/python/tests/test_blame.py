# SPDX-License-Identifier: Apache-2.0
"""amp.culprit: who is blamed for an overflow, by what was broken, at each level, seen at once and an epoch later."""

import forks
import pytest

torch = pytest.importorskip("torch")
from half import LACKS_HALF  # noqa: E402

if LACKS_HALF:
    pytest.skip("observing is a mode, and so is what computes half for this torch here", allow_module_level=True)

from levels import DYNAMIC, LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402

INF, NAN = float("inf"), float("nan")
FP16 = ("O1", "O2", "O3")


class Bad(torch.autograd.Function):
    """A Function of the script's, whose backward is wrong."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * Bad.factor


class Net(nn.Module):
    """Each thing that may break in a forward: `breaks` says which one does, and gives `bad`."""

    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        self.breaks, self.bad = None, 1.0

    def forward(self, x):
        Bad.factor = self.bad if self.breaks == "Function" else 1.0
        h = Bad.apply(torch.relu(self.fc(x)))
        if self.breaks == "op":
            h = h + (torch.reciprocal(h * 0.0) if self.bad == INF else torch.log(h * 0.0 - 1.0))
        if self.breaks == "in place":
            h = torch.sub(h, 1.0).sqrt_() if self.bad != INF else torch.add(h * 0.0, 1.0).div_(0.0)
        if self.breaks == "mask":
            scores = h @ h.t()
            hidden = torch.ones_like(scores)
            h = torch.softmax(scores + hidden * -1e9, -1).to(h.dtype) @ h
        return self.out(h)


# what is broken: who is blamed, why; the levels at which it breaks
GUILTY = {
    "batch": ("fc: linear", "input", LEVELS),
    "weight": ("fc: linear", "weight", LEVELS),
    "op": (None, "op", LEVELS),
    "in place": (None, "op", LEVELS),
    "cast": ("fc: linear", "cast", FP16),
    "Function": ("Bad (backward)", "op", LEVELS),
    "mask": ("mul", "op", FP16),
    "loss": ("mul", "op", LEVELS),
}
OPS = {
    ("op", INF): "reciprocal",
    ("op", NAN): "log",
    ("in place", INF): "div_",
    ("in place", NAN): "sqrt_",
}


def step(model, optimizer, breaks, bad):
    x = torch.rand(4, 8) + 0.5
    model.breaks, model.bad, factor = breaks, bad, 1.0
    if breaks == "batch":
        x[1, 2] = bad
    elif breaks == "weight":
        with torch.no_grad():
            model.fc.weight[0, 0] = bad
    elif breaks == "cast":
        x[1, 2] = 1e6
    elif breaks == "loss":
        factor = bad
    optimizer.zero_grad()
    with amp.scale_loss(model(x).float().pow(2).mean() * factor, optimizer) as scaled:
        scaled.backward()
    optimizer.step()


@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [INF, NAN])
@pytest.mark.parametrize("breaks", GUILTY)
def test_the_guilty_is_named(breaks, bad, level, every):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=16.0)
    amp.observe(model, every=every)
    for _ in range(2):
        step(model, optimizer, None, bad)
    assert amp.culprit() is None
    steps = 0
    while amp.culprit() is None and steps < 19:
        step(model, optimizer, breaks, bad)
        steps += 1
    found = amp.culprit()
    op, cause, levels = GUILTY[breaks]
    if level not in levels:
        assert found is None
        return
    assert found is not None
    if every == 20 and level not in DYNAMIC:  # the first such step broke the weights
        assert (found.bracket, found.cause) == (21, "weight")
        assert found.since_least <= (3 if breaks == "weight" else 4) <= found.since <= 5
        return
    op = op or OPS[breaks, bad]
    assert (found.cause, found.was_cast) == (cause, cause == "cast")
    assert found.op == op or found.op == f"Net: {op}"
    assert found.bracket == (3 if every == 1 else 4)
    if breaks == "weight":
        assert (found.weight, found.since) == ("fc.weight", found.bracket)
        assert found.since_least == (3 if every == 1 else 2)
    else:
        assert found.weight is None
        assert not (found.filename or "").startswith("<")


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_mask_is_advised_on(level):
    """-1e9 is infinite in fp16, and a number by value."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    amp.observe(model, every=1)
    step(model, optimizer, "mask", 1.0)
    told = [advice for advice in amp.survey(model).advice if advice.code == "AMP-A08"]
    assert [(advice.op.removeprefix("Net: "), advice.largest) for advice in told] == [("mul", 1e9)]


OVERFLOWS = """
import torch
from libamp.torch import amp
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O1", verbosity=1)
for _ in range(17):
    h = model(torch.randn(16, 16)) * 600
    with amp.scale_loss((h @ h.t()).float().mean(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
"""
VANISHES = """
import torch
from libamp.torch import amp
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=6e4), opt_level="O3", verbosity=0)
for _ in range(3):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.randn(512, 16)).float().pow(2).mean() * 1e-9, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("script", "code", "says"), [(OVERFLOWS, "AMP-M85", ""), (VANISHES, "AMP-M08", "underflow")])
def test_a_check_does_not_bless_what_trains_nothing(tmp_path, script, code, says):
    (tmp_path / "script.py").write_text(script)
    done = forks.run("-m", "libamp.run", "--check", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "\nsound" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith(code) or f": {code}" in line]
    assert says in done.stderr
    if script is OVERFLOWS:  # what is said meanwhile
        told = done.stdout.splitlines()
        skips = [line for line in told if line.startswith("Gradient overflow")]
        assert ["From here on" in line for line in skips].index(True) == 9
        assert skips[10].endswith("(5 more skips since the last line)")
        assert sum("10 steps in a row were skipped" in line and "AMP_OBSERVE=every=1" in line for line in told) == 1


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_a_level_at_which_gradients_vanish_does_not_fit(level):
    """Gradients of 1e-9 are 0 in fp16 at O3's loss scale of 1, and so they are seen there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=6e4)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    amp.observe(model, every=1)
    with amp.scale_loss(model(torch.randn(512, 16)).float().pow(2).mean() * 1e-6, optimizer) as scaled:
        scaled.backward()
    survey = amp.survey(model)
    assert {advice.levels for advice in survey.advice if advice.code == "AMP-A12"} == {("O3",)}
    assert {each.memory.level: each.fits for each in survey.levels}["O3"] == "no"
