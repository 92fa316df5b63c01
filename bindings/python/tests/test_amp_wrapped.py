# SPDX-License-Identifier: Apache-2.0
"""Optimizers around optimizers, and scripts that write weights between steps: what FP32 training does, every level does."""
import copy
import inspect
import io
from collections import defaultdict

import pytest

torch = pytest.importorskip("torch")

from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

LEVELS = ["O0", "O1", "O2", "O3", "O4", "O5"]
WITH_MASTERS = ["O2", "O5"]


@pytest.fixture(autouse=True)
def _ends():
    yield
    amp.shutdown()


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation as scripts have it: weights climb, come back as `.data`, and the optimizer inside steps."""

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


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _batches(n):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)) for _ in range(n)]


def _backward(model, optimizer, batch, factor=1.0):
    loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1]) * factor
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()


def _fp32_weights(model):
    return [value.float().clone() for value in model.state_dict().values()]


def _far(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs))


def _train_sam(level, inner, **defaults):
    model = _net()
    optimizer = Sam(model.parameters(), inner, **defaults)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    for batch in _batches(20):
        _backward(model, optimizer, batch)
        optimizer.first_step()
        _backward(model, optimizer, batch)
        optimizer.second_step()
    weights = _fp32_weights(model)
    amp.shutdown()
    return weights


SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
ADAM = (torch.optim.Adam, {"lr": 0.01, "eps": 1e-4})  # not at O3: squares of gradients are below what half can hold


@pytest.mark.parametrize("level, inner, defaults", [(level, *how) for level in LEVELS[1:] for how in (SGD, ADAM)
                                                    if level != "O3" or how is SGD])
def test_sharpness_aware_training(level, inner, defaults):
    exact, start = _train_sam("O0", inner, **defaults), _fp32_weights(_net())
    weights = _train_sam(level, inner, **defaults)
    assert _far(exact, start) > 0.1
    assert _far(weights, exact) < (0.06 if level in ("O4", "O5") else 0.03)


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_sharpness_aware_training_by_closures(level):
    model = _net()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    seen = []
    for batch in _batches(3):

        def closure(batch=batch):
            seen.append(_fp32_weights(model))
            _backward(model, optimizer, batch)

        optimizer.step(closure)
    climbs = [_far(first, second) for first, second in zip(seen[::2], seen[1::2])]
    assert all(0.001 < climb < 0.06 for climb in climbs), climbs
    assert _far(seen[0], seen[2]) > 0.001


@pytest.mark.parametrize("level", LEVELS)
def test_the_optimizer_inside_skips_too(level):
    model = _net()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic")
    batch = _batches(1)[0]
    _backward(model, optimizer, batch)
    optimizer.first_step()
    before = [state["old_p"].clone() for state in optimizer.state.values()]
    _backward(model, optimizer, batch, float("inf"))
    optimizer.second_step()
    assert amp.stepped(optimizer) is False
    assert amp.stepped(optimizer.base_optimizer) is False
    assert _far([p.detach() for p in amp.master_params(optimizer)], before) == 0.0
    model(batch[0])  # the weights that the model computes with have come back, too
    assert _far([p.detach().float() for p in model.parameters()], [value.to(p.dtype).float() for value, p in
                                                                    zip(before, model.parameters())]) == 0.0


def _train_lookahead(level, delegates, warm):
    model = _net()
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4), delegates=delegates)
    batches = _batches(10)
    for batch in batches[:warm]:  # state that is there before initialize
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    for batch in batches[warm:]:
        _backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
    weights = _fp32_weights(model)
    return model, optimizer, weights


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("delegates", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2", "O4", "O5"])
def test_lookahead(level, delegates, warm):
    _, _, exact = _train_lookahead("O0", delegates, warm)
    amp.shutdown()
    model, optimizer, weights = _train_lookahead(level, delegates, warm)
    assert _far(weights, exact) < 0.03
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
    model, late = _net(), nn.Linear(4, 4)
    model.append(late)
    optimizer = Lookahead(torch.optim.SGD(model[:3].parameters(), lr=0.1))
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    before = late.weight.detach().float().clone()
    optimizer.add_param_group({"params": list(late.parameters())})
    assert len(list(amp.master_params(optimizer))) == 6
    assert all(p.dtype is torch.float32 for group in optimizer.param_groups for p in group["params"])
    _backward(model, optimizer, _batches(1)[0])
    optimizer.step()
    assert not torch.equal(late.weight.detach().float(), before)


def test_the_one_inside_may_be_given_too():
    model = _net()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    amp.initialize(model, [optimizer, optimizer.optimizer], opt_level="O2", verbosity=0)
    before = _fp32_weights(model)
    _backward(model, optimizer, _batches(1)[0])
    optimizer.step()
    assert _far(_fp32_weights(model), before) > 0.0


# ---- writes between steps ----


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("how", ["master", "state", "data"])
def test_a_forward_computes_with_what_was_written_to_masters(level, how):
    """Averaged weights are swapped in for an evaluation, and out again."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x = _batches(1)[0][0]
    for batch in _batches(3):
        _backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
    trained = model(x)
    masters = list(amp.master_params(optimizer))
    kept = [p.detach().clone() for p in masters]
    with torch.no_grad():
        for index, value in enumerate(model.state_dict().values() if how == "state" else masters):
            if how == "data":
                value.data = torch.zeros_like(value)
            else:
                value.zero_()
            assert value.abs().max() == 0, index
    assert model(x).abs().max() == 0
    with torch.no_grad():
        for p, value in zip(masters, kept):
            p.copy_(value)
    assert torch.equal(model(x), trained)
    assert _far([p.detach() for p in masters], kept) == 0.0
    _backward(model, optimizer, _batches(1)[0])
    optimizer.step()
    assert 0.0 < _far([p.detach() for p in masters], kept) < 0.1


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_master_that_got_other_memory_is_stepped_on(level):
    """`p.data = p.data - lr * grad`, as optimizers by hand have it, inside step and out of it."""

    class ByHand(torch.optim.SGD):
        def step(self, closure=None):
            for p in (p for group in self.param_groups for p in group["params"]):
                p.data = p.data - 0.1 * p.grad.data

    def train(level):
        model = _net()
        optimizer = ByHand(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
        for batch in _batches(5):
            _backward(model, optimizer, batch)
            optimizer.step()
            optimizer.zero_grad()
        weights = _fp32_weights(model), [p.detach().float() for p in model.parameters()]
        amp.shutdown()
        return weights

    exact, ours, start = train("O0"), train(level), _fp32_weights(_net())
    assert _far(exact[0], start) > 0.01
    assert _far(ours[0], exact[0]) < 0.005
    assert _far(ours[1], exact[0]) < 0.01


def test_other_memory_of_another_shape_is_refused():
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    master = next(iter(amp.master_params(optimizer)))
    home = master.data
    master.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"\(16, 8\) was given data of shape \(3,\)"):
        model(_batches(1)[0][0])
    master.data = home
    model(_batches(1)[0][0])


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_masters_of_one_optimizer_wait_for_no_step_of_another(level):
    model = _net()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    amp.initialize(model, [first, second], opt_level=level, verbosity=0)
    with torch.no_grad():
        for p in amp.master_params(second):
            p.zero_()
    _backward(model, [first, second], _batches(1)[0])
    first.step()
    assert model(_batches(1)[0][0]).abs().max() == 0


@pytest.mark.parametrize("level", LEVELS)
def test_pruning_is_kept_when_it_is_made_permanent(level):
    model = _net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    batch = _batches(1)[0]
    _backward(model, optimizer, batch)
    optimizer.step()
    prune.remove(model[0], "weight")
    zeros = model[0].weight.detach() == 0
    assert zeros.sum() == zeros.numel() // 2
    optimizer.zero_grad()
    _backward(model, optimizer, batch, 0.0)
    optimizer.step()
    assert torch.equal(model[0].weight.detach() == 0, zeros)
    assert torch.equal(model.state_dict()["0.weight"] == 0, zeros)


def test_copies_keep_to_themselves():
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    average = copy.deepcopy(model)
    x = _batches(1)[0][0]
    before = average(x)
    with torch.no_grad():
        for p in amp.master_params(optimizer):
            p.zero_()
    assert torch.equal(average(x), before)
    assert model(x).abs().max() == 0


# ---- averages of weights in a copy ----


def _average_into(average, model, decay):
    """As trainers have it, over state_dict."""
    with torch.no_grad():
        state = model.state_dict()
        for name, value in average.state_dict().items():
            if value.dtype.is_floating_point:
                value *= decay
                value += (1.0 - decay) * state[name].detach()


def _train_with_average(level, steps, decay=0.999):
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    average = copy.deepcopy(model)
    for batch in _batches(steps):
        _backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
        _average_into(average, model, decay)
    return model, average


@pytest.mark.parametrize("level", LEVELS)
def test_averages_over_the_state_of_a_copy(level):
    """0.999 of a weight is the weight, where 16 bits hold it: the average is kept in FP32."""
    _, exact = _train_with_average("O0", 20)
    exact = _fp32_weights(exact)
    amp.shutdown()
    _, average = _train_with_average(level, 20)
    ours, start = _fp32_weights(average), _fp32_weights(_net())
    moved = _far(exact, start)
    assert moved > 1e-3
    if level in WITH_MASTERS:
        assert _far(ours, exact) < (0.01 if level == "O5" else 0.002)  # a copy begins with its 16-bit values
    if level == "O2":
        changes = [(a - s).abs().sum() / (e - s).abs().sum() for a, e, s in zip(ours, exact, start)]
        assert all(0.8 < change < 1.2 for change in changes[::2]), changes
    low = next(average.parameters()).dtype
    average(_batches(1)[0][0])  # computes with the average
    expected = [value.to(low).float() for value in ours]
    assert _far([p.detach().float() for p in average.parameters()], expected) == 0.0
    for same in (copy.deepcopy(average), _through_a_file(average)):
        assert _far([p.detach().float() for p in same.parameters()], expected) == 0.0


def _through_a_file(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    whole = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(buffer, **whole)


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_copy_is_saved_and_copied_with_what_was_written_to_its_state(level):
    model, _ = _train_with_average(level, 1)
    for again in (copy.deepcopy, _through_a_file):
        average = copy.deepcopy(model)
        with torch.no_grad():
            for value in average.state_dict().values():
                value.fill_(0.3)
        same = again(average)
        assert _far(_fp32_weights(same), [torch.full_like(value, 0.3) for value in _fp32_weights(same)]) < 1e-3


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_what_was_written_to_a_copy_last_counts(level):
    model, _ = _train_with_average(level, 1)
    average = copy.deepcopy(model)
    exact = average.state_dict()["0.bias"]
    with torch.no_grad():
        exact.fill_(0.1)
        assert average.state_dict()["0.bias"] is not None
        average[0].bias[:2] = 3.0
    again = average.state_dict()["0.bias"]
    assert again[:2].tolist() == [3.0, 3.0]
    assert torch.equal(again[2:], torch.full((14,), 0.1))  # to the last bit
    average.load_state_dict({name: torch.zeros_like(value) for name, value in average.state_dict().items()})
    assert all(value.abs().max() == 0 for value in average.state_dict().values())
    assert average(_batches(1)[0][0]).abs().max() == 0


# ---- models that change after initialize ----


def _conv():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


def _conv_training(level, relaid):
    model = _conv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    generator = torch.Generator().manual_seed(2)
    for step in range(4):
        if step in relaid:
            model.to(memory_format=torch.channels_last if step % 2 == 0 else torch.contiguous_format)
        x = torch.randn(2, 3, 8, 8, generator=generator)
        with amp.scale_loss(model(x).float().square().mean(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = _fp32_weights(model)
    amp.shutdown()
    assert all(p.dtype is torch.float32 for p in model.parameters())
    return weights, model[0].weight.is_contiguous(memory_format=torch.channels_last), _fp32_weights(model)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("relaid", [{0}, {2}, {0, 1}, {0, 1, 2}])
def test_a_model_is_laid_out_anew_after_initialize(level, relaid):
    weights, channels_last, after = _conv_training(level, relaid)
    plain, _, plain_after = _conv_training(level, set())
    assert channels_last == (relaid != {0, 1})
    bound = 1e-5 if level == "O0" else 1e-2  # convolutions add in another order
    assert _far(weights, plain) < bound
    assert _far(after, plain_after) < bound


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_layout_that_changes_under_gradients_goes_back(level):
    model = _conv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x = torch.randn(2, 3, 8, 8)
    with amp.scale_loss(model(x).float().square().mean(), optimizer) as scaled:
        scaled.backward()
    before = _fp32_weights(model)
    model.to(memory_format=torch.channels_last)
    optimizer.step()
    assert 0.0 < _far(_fp32_weights(model), before) < 0.5
    assert _far([p.detach().float() for p in model.parameters()], [p.detach() for p in amp.master_params(optimizer)]) < 0.01
    model(x)


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shutdown_ends_what_a_script_gave_another_type(level, dtype):
    model = _net()
    forward = nn.functional.linear
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = _fp32_weights(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    model.to(dtype)
    amp.shutdown()
    assert all(p.dtype is torch.float32 for p in model.parameters())
    assert _far(_fp32_weights(model), start) < 0.01
    assert not amp.initialized(model) and nn.functional.linear is forward
    model(_batches(1)[0][0])
