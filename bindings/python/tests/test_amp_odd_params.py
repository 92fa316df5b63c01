# SPDX-License-Identifier: Apache-2.0
"""Parameters whose gradients are no plain real numbers, and arguments that would leave gradients scaled: right, or
refused."""
import copy

import pytest

torch = pytest.importorskip("torch")

from levels import LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp.scaler import LossScaler  # noqa: E402
from torch import nn  # noqa: E402


class Spectral(nn.Module):
    """Complex weights, one of them transposed in memory, beside real ones."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.mix = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64).t())
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.head = nn.Linear(3, 1)

    def spectrum(self):
        return (self.filter * (1.0 + 0.5j)) @ self.mix.conj() + self.wide.to(torch.complex64)

    def forward(self, x):
        return self.head(x) * 0.0 + self.spectrum().abs().square().sum()

    def complex_ones(self):
        return [self.filter, self.mix, self.wide]


def _backward(model, optimizer, factor=1.0):
    loss = model(torch.ones(2, 3)).float().mean() * factor
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()


@pytest.mark.plain_half  # modes of torch 2.0 take numbers for tensors where they are complex
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("joins_late", [False, True])
def test_complex_gradients_are_unscaled_added_and_checked(level, joins_late):
    torch.manual_seed(0)
    model = Spectral()
    plain = copy.deepcopy(model)
    plain(torch.ones(2, 3)).mean().backward()
    optimizer = torch.optim.SGD(list(model.head.parameters()) if joins_late else list(model.parameters()), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=256.0)
    if joins_late:
        optimizer.add_param_group({"params": model.complex_ones()})
    for times in (1.0, 2.0):
        _backward(model, optimizer)
        for ours, theirs in zip(model.complex_ones(), plain.complex_ones()):
            assert ours.dtype is theirs.dtype
            torch.testing.assert_close(ours.grad, times * theirs.grad, rtol=2e-2, atol=2e-2)
    optimizer.zero_grad()
    before = [param.detach().clone() for param in model.complex_ones()]
    with amp.scale_loss(torch.view_as_real(model.mix).sum() * float("inf"), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert amp.stepped(optimizer) is False
    assert all(torch.equal(param, old) for param, old in zip(model.complex_ones(), before))
    optimizer.zero_grad()
    _backward(model, optimizer)
    optimizer.step()
    assert amp.stepped(optimizer) and not torch.equal(model.filter, before[0])


def test_sparse_parameters_are_refused_where_gradients_are_scaled():
    model = nn.Linear(3, 1)
    odd = nn.Parameter(torch.eye(3).to_sparse())
    optimizer = torch.optim.SGD([*model.parameters(), odd], lr=0.1)
    with pytest.raises(RuntimeError, match="sparse_coo: loss scaling works on dense ones"):
        amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.initialize(model, optimizer, opt_level="O0", verbosity=0)  # nothing is scaled
    _backward(model, optimizer)
    assert torch.equal(model.bias.grad, torch.ones(1))


@pytest.mark.parametrize("value", [-1, -1.0, "-1", -128.0])
def test_a_negative_scale_does_not_mean_dynamic(value):
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="above 0"):
        amp.initialize(model, opt_level="O2", verbosity=0, loss_scale=value)
    with pytest.raises(ValueError, match="above 0"):
        LossScaler(value)


def test_scale_loss_wants_somebody_who_unscales():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    with pytest.raises(TypeError, match="optimizers is None"), amp.scale_loss(model(torch.ones(1, 3)).sum(), None):
        pass
    _backward(model, optimizer)
