# SPDX-License-Identifier: Apache-2.0
"""amp.shutdown gives a model back whole, whatever its script did to parameters and buffers meanwhile."""
import casting
import pytest

torch = casting.torch
from libamp.torch import amp  # noqa: E402

LOW = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}
LEVELS = [("O2", {}), ("O3", {}), ("O5", {}), ("O5", {"master_weights": "split"})]
levels = pytest.mark.parametrize(("level", "how"), LEVELS, ids=["O2", "O3", "O5", "split"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        for name in ("seen", "mean", "gone", "typed", "empty"):
            self.register_buffer(name, torch.full((1,), 0.1))

    def forward(self, x):
        if self.seen.numel() == 1:
            self.seen.resize_(4)
        self.seen.copy_(x.detach().abs().amax(0))
        self.mean = self.mean * 0.5 + x.detach().mean()
        self.gone = None
        self.typed.data = self.typed.data.double()
        self.empty.data = self.empty.data[:0]
        self.register_buffer("fresh", x.detach()[0].clone())
        return self.last(self.linear(x))


def train(model, optimizer, steps=2):
    for _ in range(steps):
        with amp.scale_loss(model(torch.ones(8, 4)).float().pow(2).mean(), optimizer) as loss:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@levels
def test_buffers_that_the_model_changes(level, how):
    model = Net()
    own, state = list(model.state_dict()), {}
    amp.initialize(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0, **how)
    train(model, optimizer)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert model.seen.dtype == LOW[level]
    amp.shutdown(model)
    assert type(model) is Net and not amp.initialized(model)
    tensors = dict(model.named_buffers()) | dict(model.named_parameters())
    assert set(tensors) == (set(own) - {"gone"}) | {"fresh"} and model.gone is None
    assert {name for name, tensor in tensors.items() if tensor.dtype != torch.float32} <= {"typed"}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, state[name].to(tensor.dtype)), name
    assert model.seen.shape == (4,) and model.empty.numel() == 0
    assert model(torch.ones(8, 4)).dtype == torch.float32


@levels
def test_parameters_that_the_script_changes(level, how):
    """A pruned one, one that another took the place of, and one whose memory is gone."""
    model = Net()
    linear, last = model.linear, model.last
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **how)
    train(model, optimizer, 1)
    held = model.state_dict()
    with torch.no_grad():
        pruned = linear.weight.float()[:2]
        exact = last.weight.detach().float()
    linear.weight.data, linear.bias.data = linear.weight.data[:2].clone(), linear.bias.data[:2].clone()
    last.weight = torch.nn.Parameter(last.weight.detach().clone())
    last.bias.data.untyped_storage().resize_(0)
    amp.shutdown()
    assert [tensor.dtype for tensor in model.parameters()] == [torch.float32] * 4 and type(model) is Net
    assert torch.equal(linear.weight, pruned) and torch.equal(last.weight, exact)
    assert last.bias.shape == (4,) and last.bias.untyped_storage().nbytes() == 16
    assert "step" not in vars(optimizer) and not hasattr(optimizer, "_amp_stash") and held
    assert sum(param is linear.weight for group in optimizer.param_groups for param in group["params"]) == 1


@levels
def test_a_shutdown_that_is_refused_changes_nothing(level, how):
    class Ends(Net):
        def forward(self, x):
            if self.training:
                with pytest.raises(RuntimeError, match="leave it first"):
                    amp.shutdown(self)
            return super().forward(x)

    model = Ends()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **how)
    train(model, optimizer)
    assert amp.initialized(model) and model.seen.dtype == model.linear.weight.dtype == LOW[level]
    amp.shutdown(model)
    assert model.seen.dtype == model.linear.weight.dtype == torch.float32


def test_a_shutdown_that_is_refused_leaves_functions_patched():
    class Ends(torch.nn.Linear):
        def forward(self, x):
            with pytest.raises(RuntimeError, match="leave it first"):
                amp.shutdown(self)
            return super().forward(x)

    model = amp.initialize(Ends(4, 4), opt_level="O1", verbosity=0)
    assert model(torch.ones(2, 4)).dtype == torch.float16
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float16


def test_what_fails_does_not_keep_the_rest():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    session = optimizer._amp_stash.session
    session.undo.append(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        amp.shutdown()
    assert model.weight.dtype == torch.float32 and type(model) is torch.nn.Linear
    assert optimizer.param_groups[0]["params"] == list(model.parameters()) and "step" not in vars(optimizer)
