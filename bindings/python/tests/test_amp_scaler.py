# SPDX-License-Identifier: Apache-2.0
"""The loss scale, tick by tick: mode torch against torch.amp.GradScaler, and Apex's own rules."""
import random

import pytest

torch = pytest.importorskip("torch")

from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import _amp_state  # noqa: E402


def _overflows(seed, n, rate):
    random.seed(seed)
    return [random.random() < rate for _ in range(n)]


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for the CPU")
@pytest.mark.parametrize("growth_interval", (1, 2, 5))
@pytest.mark.parametrize(("growth", "backoff"), ((4.0, 0.25), (1.0001, 0.9)))
@pytest.mark.parametrize("seed", range(3))
def test_mode_torch_is_grad_scalers_trace(growth_interval, growth, backoff, seed):
    theirs = torch.nn.Parameter(torch.ones(2))
    their_optimizer = torch.optim.SGD([theirs], lr=0.5)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**8, growth_interval=growth_interval, growth_factor=growth, backoff_factor=backoff
    )
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(2))
    model.forward = lambda: (model.weight * 0.25).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level="O0", loss_scale="dynamic", scaler="torch", init_scale=2.0**8,
                   window=growth_interval, growth=growth, backoff=backoff, verbosity=0, max_loss_scale=None)
    for overflow in _overflows(seed, 60, 0.3):
        factor = float("inf") if overflow else 1.0
        their_optimizer.zero_grad()
        (scaler.scale((theirs * 0.25).sum()) * factor).backward()
        scaler.step(their_optimizer)
        scaler.update()
        optimizer.zero_grad()
        with amp.scale_loss(model(), optimizer) as scaled:
            (scaled * factor).backward()
        optimizer.step()
        assert _amp_state.loss_scalers[0].loss_scale() == scaler.get_scale()
        assert _amp_state.loss_scalers[0]._unskipped == scaler.state_dict()["_growth_tracker"]
        assert torch.equal(model.weight, theirs)


@pytest.mark.parametrize("seed", range(3))
def test_apexs_rule(seed):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O0", loss_scale="dynamic", verbosity=0, window=4,
                   max_loss_scale=2.0**18, min_loss_scale=2.0**10)
    scale, unskipped = 2.0**16, 0
    for overflow in _overflows(seed, 100, 0.3):
        with amp.scale_loss(model(torch.ones(1, 2)).mean() * 1e-6, optimizer) as scaled:
            (scaled * float("inf") if overflow else scaled).backward()
        optimizer.step()
        optimizer.zero_grad()
        if overflow:
            scale, unskipped = max(2.0**10, scale / 2), 0
        else:
            unskipped += 1
        if unskipped == 4:
            scale, unskipped = min(2.0**18, scale * 2), 0
        assert _amp_state.loss_scalers[0].loss_scale() == scale
        assert _amp_state.loss_scalers[0]._unskipped == unskipped


@pytest.mark.parametrize(("scale", "skips"), [(1.0, False), (128.0, True)])
def test_a_static_scale_stays(scale, skips):
    """At 1 it never skips, as in Apex; elsewhere an overflow is the scale's doing, and the step is left out."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", loss_scale=scale, verbosity=0)
    with amp.scale_loss(model(torch.ones(1, 2)).mean(), optimizer) as scaled:
        (scaled * float("inf")).backward()
    optimizer.step()
    assert amp.stepped(optimizer) is not skips
    assert _amp_state.loss_scalers[0].loss_scale() == scale
