# SPDX-License-Identifier: Apache-2.0
"""Optimizers around optimizers: what they do in FP32 training, they do at every level."""
from collections import defaultdict
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from levels import IN_BF16, LEVELS, WITH_MASTERS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from training import backward, batches, far, fp32_weights, net  # noqa: E402


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation as scripts have it: weights climb, come back as `.data`, and the optimizer inside
    steps."""

    def __init__(self, params, inner, rho=0.05, **defaults):
        super().__init__(params, dict(rho=rho, **defaults))
        self.base_optimizer = inner(self.param_groups, **defaults)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        closure()
        self.first_step()
        closure()
        self.second_step()


class Lookahead:
    """Slow weights around any optimizer. `delegates`: state_dict is the inner one's alone, as in several packages."""

    def __init__(self, optimizer, k=2, alpha=0.5, delegates=False):
        self.optimizer, self.k, self.alpha, self.delegates = optimizer, k, alpha, delegates
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        self.steps = 0
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.data.clone()

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.steps += 1
        if self.steps % self.k == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    slow = self.state[p]["slow"]
                    slow += (p.data - slow) * self.alpha
                    p.data.copy_(slow)
        return loss

    def add_param_group(self, group):
        self.optimizer.add_param_group(group)
        for p in self.param_groups[-1]["params"]:
            self.state[p]["slow"] = p.data.clone()

    def state_dict(self):
        if self.delegates:
            return self.optimizer.state_dict()
        slow = {id(p): value for p, value in self.state.items()}
        return {"fast": self.optimizer.state_dict(), "slow": slow}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state if self.delegates else state["fast"])
        self.param_groups = self.optimizer.param_groups
        if not self.delegates:
            self.state = defaultdict(dict, state["slow"])


def _train_sam(level, inner, **defaults):
    model = net()
    optimizer = Sam(model.parameters(), inner, **defaults)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    for batch in batches(20):
        backward(model, optimizer, batch)
        optimizer.first_step()
        backward(model, optimizer, batch)
        optimizer.second_step()
    weights = fp32_weights(model)
    amp.shutdown()
    return weights


SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
ADAM = (torch.optim.Adam, {"lr": 0.01, "eps": 1e-4})  # not at O3: squares of gradients are below what half can hold


@pytest.mark.parametrize("level, inner, defaults", [(level, *how) for level in LEVELS[1:] for how in (SGD, ADAM)
                                                    if level != "O3" or how is SGD])
def test_sharpness_aware_training(level, inner, defaults):
    exact, start = _train_sam("O0", inner, **defaults), fp32_weights(net())
    weights = _train_sam(level, inner, **defaults)
    assert far(exact, start) > 0.1
    assert far(weights, exact) < (0.06 if level in IN_BF16 else 0.03)


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_sharpness_aware_training_by_closures(level):
    model = net()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    seen = []
    for batch in batches(3):

        def closure(batch=batch):
            seen.append(fp32_weights(model))
            backward(model, optimizer, batch)

        optimizer.step(closure)
    climbs = [far(first, second) for first, second in zip(seen[::2], seen[1::2])]
    assert all(0.001 < climb < 0.06 for climb in climbs), climbs
    assert far(seen[0], seen[2]) > 0.001


@pytest.mark.parametrize("level", LEVELS)
def test_the_optimizer_inside_skips_too(level):
    model = net()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic")
    batch = batches(1)[0]
    backward(model, optimizer, batch)
    optimizer.first_step()
    before = [state["old_p"].clone() for state in optimizer.state.values()]
    backward(model, optimizer, batch, float("inf"))
    optimizer.second_step()
    assert amp.stepped(optimizer) is False
    assert amp.stepped(optimizer.base_optimizer) is False
    assert far([p.detach() for p in amp.master_params(optimizer)], before) == 0.0
    model(batch[0])  # the weights that the model computes with have come back, too
    assert far([p.detach().float() for p in model.parameters()], [value.to(p.dtype).float() for value, p in
                                                                    zip(before, model.parameters())]) == 0.0


def _train_lookahead(level, delegates, warm):
    model = net()
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4), delegates=delegates)
    data = batches(10)
    for batch in data[:warm]:  # state that is there before initialize
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    for batch in data[warm:]:
        backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
    weights = fp32_weights(model)
    return model, optimizer, weights


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("delegates", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_lookahead(level, delegates, warm):
    _, _, exact = _train_lookahead("O0", delegates, warm)
    amp.shutdown()
    model, optimizer, weights = _train_lookahead(level, delegates, warm)
    assert far(weights, exact) < 0.03
    amp.shutdown()
    params = list(model.parameters())
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in params]
    for state in (optimizer.state, optimizer.optimizer.state):
        assert {id(key) for key in state} == {id(p) for p in params}
    assert all(value.dtype is torch.float32 for state in optimizer.optimizer.state.values()
               for value in state.values() if torch.is_tensor(value))
    assert "step" not in vars(optimizer) and not hasattr(optimizer.optimizer, "_amp_stash")


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_group_joins_an_optimizer_around_another(level):
    model, late = net(), nn.Linear(4, 4)
    model.append(late)
    optimizer = Lookahead(torch.optim.SGD(model[:3].parameters(), lr=0.1))
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    before = late.weight.detach().float().clone()
    optimizer.add_param_group({"params": list(late.parameters())})
    assert len(list(amp.master_params(optimizer))) == 6
    assert all(p.dtype is torch.float32 for group in optimizer.param_groups for p in group["params"])
    backward(model, optimizer, batches(1)[0])
    optimizer.step()
    assert not torch.equal(late.weight.detach().float(), before)


def test_members_that_only_look_like_optimizers():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.spy, optimizer.kinds, optimizer.model = mock.MagicMock(), [torch.optim.SGD, None], model
    optimizer.other = torch.optim.SGD(net().parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert "_amp_stash" not in vars(optimizer.spy) and not hasattr(optimizer.other, "_amp_stash")
    backward(model, optimizer, batches(1)[0])
    optimizer.step()


def test_the_one_inside_may_be_given_too():
    model = net()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    amp.initialize(model, [optimizer, optimizer.optimizer], opt_level="O2", verbosity=0)
    before = fp32_weights(model)
    backward(model, optimizer, batches(1)[0])
    optimizer.step()
    assert far(fp32_weights(model), before) > 0.0
