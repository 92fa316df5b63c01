# SPDX-License-Identifier: Apache-2.0
"""nn.Embedding(sparse=True) at every level: steps as FP32 training makes them, and skips as GradScaler does."""
import casting
import pytest

torch = casting.torch
nn = torch.nn
from levels import DYNAMIC, PATCHES, WITH_MASTERS  # noqa: E402
from libamp.torch import amp  # noqa: E402

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.125),
    "SparseAdam": lambda params: torch.optim.SparseAdam(params, lr=0.01),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}
BATCHES = [torch.tensor([1, 2, 1]), torch.tensor([3, 3, 0]), torch.tensor([2, 5, 7])]
UNIQUE = [batch.unique() for batch in BATCHES]


class Table(nn.Module):
    """Autograd computes in the weight's type, and every number is exact at a scale that is a power of two."""

    def __init__(self, sparse=True, bag=False):
        super().__init__()
        torch.manual_seed(3)
        self.rows = nn.EmbeddingBag(10, 4, sparse=sparse, mode="sum") if bag else nn.Embedding(10, 4, sparse=sparse)
        with torch.no_grad():
            self.rows.weight.copy_(torch.randint(-8, 8, (10, 4)) / 8)

    def forward(self, x):
        return self.rows(x[None] if isinstance(self.rows, nn.EmbeddingBag) else x)


def loss_of(model, batch):
    return model(batch).float().pow(2).sum() / 8


def start(level, make="SGD", model=None, **how):
    model = model or Table()
    optimizer = OPTIMIZERS[make](list(model.parameters()))
    if level is not None:
        how = {"loss_scale": 1024.0, **how}
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **how)
    return model, optimizer


def backward(optimizer, loss, **how):
    if not hasattr(optimizer, "_amp_stash"):
        loss.backward()
        return
    with amp.scale_loss(loss, optimizer, **how) as scaled:
        scaled.backward()


def train(level, make="SGD", model=None, batches=BATCHES, each=1, **how):
    """`each`: brackets for a step, whose gradients add up."""
    model, optimizer = start(level, make, model, **how)
    for batch in batches:
        for _ in range(each):
            backward(optimizer, loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    weight = model.state_dict()["rows.weight"].clone()
    amp.shutdown()
    return weight


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("level", PATCHES)
def test_they_step_as_fp32_does(level, make):
    for each, bag, scale in [(1, False, 1024.0), (2, True, "dynamic"), (2, False, 1.0)]:
        expected = train(None, make, Table(bag=bag), each=each)
        assert torch.equal(train(level, make, Table(bag=bag), each=each, loss_scale=scale), expected)


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("level", WITH_MASTERS)
def test_masters_step_as_with_dense_gradients(level, each):
    expected = train(level, model=Table(sparse=False), batches=UNIQUE, each=each)
    sparse = train(level, batches=UNIQUE, each=each)
    assert torch.equal(sparse, expected) and not torch.equal(sparse, Table().rows.weight)


@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_an_overflow_skips_and_the_next_step_does_not(level):
    model, optimizer = start(level, loss_scale="dynamic")
    before = model.state_dict()["rows.weight"].clone()
    for factor, steps in ((float("inf"), False), (float("nan"), False), (1.0, True)):
        scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
        backward(optimizer, loss_of(model, BATCHES[0]) * factor)
        optimizer.step()
        assert amp.stepped(optimizer) is steps
        assert torch.equal(model.state_dict()["rows.weight"], before) is not steps
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == (scale if steps else scale / 2)
        optimizer.zero_grad()


def test_an_overflow_of_another_parameter_skips_them_too():
    model = nn.Sequential(Table(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    before = model[0].rows.weight.clone()
    model[1].bias.register_hook(lambda grad: grad * float("inf"))
    backward(optimizer, model(BATCHES[0]).float().sum())
    optimizer.step()
    assert amp.stepped(optimizer) is False and torch.equal(model[0].rows.weight, before)


@pytest.mark.parametrize("level", DYNAMIC)
def test_gradients_are_unscaled_for_clipping_and_reading(level):
    model, optimizer = start(level)
    backward(optimizer, loss_of(model, BATCHES[0]))
    (param,) = amp.master_params(optimizer)
    plain = Table()
    loss_of(plain, BATCHES[0]).backward()
    assert param.grad.layout is torch.sparse_coo and param.grad.dtype is torch.float32
    assert torch.equal(param.grad.to_dense(), plain.rows.weight.grad.to_dense())
    norms = [torch.nn.utils.clip_grad_norm_(params, 1e9) for params in ([param], plain.parameters())]
    assert torch.equal(*norms)
    param.grad._values().clamp_(-0.125, 0.125)
    plain.rows.weight.grad._values().clamp_(-0.125, 0.125)
    optimizer.step()
    torch.optim.SGD(plain.parameters(), lr=0.125).step()
    if level == "O1":
        assert torch.equal(model.rows.weight, plain.rows.weight)


@pytest.mark.parametrize("level", DYNAMIC)
def test_brackets_that_delay_and_brackets_that_fail(level):
    expected = train(level, each=3)
    model, optimizer = start(level)
    for batch in BATCHES:
        backward(optimizer, loss_of(model, batch))
        with pytest.raises(ZeroDivisionError), amp.scale_loss(loss_of(model, batch), optimizer) as scaled:
            scaled.backward()
            raise ZeroDivisionError
        backward(optimizer, loss_of(model, batch), delay_unscale=True)
        backward(optimizer, loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.state_dict()["rows.weight"], expected)


def test_a_sparse_gradient_that_nobody_announced_is_refused_in_words():
    class Quiet(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return nn.functional.embedding(x, self.table, sparse=True)

    model, optimizer = start("O1", model=Quiet())
    with pytest.raises(RuntimeError, match="sparse = True"):
        backward(optimizer, model(torch.tensor([1])).sum())


def test_the_script_sees_its_own_parameters_alone():
    model, optimizer = start("O1")
    assert list(amp.master_params(optimizer)) == [model.rows.weight]
    assert [id(param) for param, _ in optimizer._amp_stash._pairs()] == [id(model.rows.weight)]
    backward(optimizer, loss_of(model, BATCHES[0]))
    optimizer.step()
    assert "sound" in amp.health()
