# SPDX-License-Identifier: Apache-2.0
"""Scripts that write weights between steps, average them in copies, or change a model after initialize."""
import copy
import inspect
import io

import pytest

torch = pytest.importorskip("torch")

from levels import CASTS_MODEL, LEVELS, WITH_MASTERS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from training import backward, batches, far, fp32_weights, net  # noqa: E402

# ---- writes between steps ----


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("how", ["master", "state", "data"])
def test_a_forward_computes_with_what_was_written_to_masters(level, how):
    """Averaged weights are swapped in for an evaluation, and out again."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x = batches(1)[0][0]
    for batch in batches(3):
        backward(model, optimizer, batch)
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
    assert far([p.detach() for p in masters], kept) == 0.0
    backward(model, optimizer, batches(1)[0])
    optimizer.step()
    assert 0.0 < far([p.detach() for p in masters], kept) < 0.1


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_master_that_got_other_memory_is_stepped_on(level):
    """`p.data = p.data - lr * grad`, as optimizers by hand have it, inside step and out of it."""

    class ByHand(torch.optim.SGD):
        def step(self, closure=None):
            for p in (p for group in self.param_groups for p in group["params"]):
                p.data = p.data - 0.1 * p.grad.data

    def train(level):
        model = net()
        optimizer = ByHand(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
        for batch in batches(5):
            backward(model, optimizer, batch)
            optimizer.step()
            optimizer.zero_grad()
        weights = fp32_weights(model), [p.detach().float() for p in model.parameters()]
        amp.shutdown()
        return weights

    exact, ours, start = train("O0"), train(level), fp32_weights(net())
    assert far(exact[0], start) > 0.01
    assert far(ours[0], exact[0]) < 0.005
    assert far(ours[1], exact[0]) < 0.01


def test_other_memory_of_another_shape_is_refused():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    master = next(iter(amp.master_params(optimizer)))
    home = master.data
    master.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"\(16, 8\) was given data of shape \(3,\)"):
        model(batches(1)[0][0])
    master.data = home
    model(batches(1)[0][0])


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_masters_of_one_optimizer_wait_for_no_step_of_another(level):
    model = net()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    amp.initialize(model, [first, second], opt_level=level, verbosity=0)
    with torch.no_grad():
        for p in amp.master_params(second):
            p.zero_()
    backward(model, [first, second], batches(1)[0])
    first.step()
    assert model(batches(1)[0][0]).abs().max() == 0


@pytest.mark.parametrize("level", LEVELS)
def test_pruning_is_kept_when_it_is_made_permanent(level):
    model = net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    batch = batches(1)[0]
    backward(model, optimizer, batch)
    optimizer.step()
    prune.remove(model[0], "weight")
    zeros = model[0].weight.detach() == 0
    assert zeros.sum() == zeros.numel() // 2
    optimizer.zero_grad()
    backward(model, optimizer, batch, 0.0)
    optimizer.step()
    assert torch.equal(model[0].weight.detach() == 0, zeros)
    assert torch.equal(model.state_dict()["0.weight"] == 0, zeros)


def test_copies_keep_to_themselves():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    average = copy.deepcopy(model)
    x = batches(1)[0][0]
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
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    average = copy.deepcopy(model)
    for batch in batches(steps):
        backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
        _average_into(average, model, decay)
    return model, average


@pytest.mark.parametrize("level", LEVELS)
def test_averages_over_the_state_of_a_copy(level):
    """0.999 of a weight is the weight, where 16 bits hold it: the average is kept in FP32."""
    _, exact = _train_with_average("O0", 20)
    exact = fp32_weights(exact)
    amp.shutdown()
    _, average = _train_with_average(level, 20)
    ours, start = fp32_weights(average), fp32_weights(net())
    moved = far(exact, start)
    assert moved > 1e-3
    if level in WITH_MASTERS:
        assert far(ours, exact) < (0.01 if level == "O5" else 0.002)  # a copy begins with its 16-bit values
    if level == "O2":
        changes = [(a - s).abs().sum() / (e - s).abs().sum() for a, e, s in zip(ours, exact, start)]
        assert all(0.8 < change < 1.2 for change in changes[::2]), changes
    low = next(average.parameters()).dtype
    average(batches(1)[0][0])  # computes with the average
    expected = [value.to(low).float() for value in ours]
    assert far([p.detach().float() for p in average.parameters()], expected) == 0.0
    for same in (copy.deepcopy(average), _through_a_file(average)):
        assert far([p.detach().float() for p in same.parameters()], expected) == 0.0


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
        assert far(fp32_weights(same), [torch.full_like(value, 0.3) for value in fp32_weights(same)]) < 1e-3


def test_a_copy_that_is_initialised_has_masters_as_any_model():
    model, _ = _train_with_average("O5", 1)
    student = copy.deepcopy(model)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    amp.initialize(student, optimizer, opt_level="O5", verbosity=0)
    student.load_state_dict({name: torch.full_like(value, 0.1) for name, value in student.state_dict().items()})
    assert all(torch.equal(p, torch.full_like(p, 0.1)) for p in amp.master_params(optimizer))
    assert all(torch.equal(value, torch.full_like(value, 0.1)) for value in student.state_dict().values())


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_a_copy_follows_writes_that_no_version_tells_of(level):
    """`.data.copy_` on a copy's parameters, or on what its state_dict shows."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    average = copy.deepcopy(model)
    average.state_dict()
    for batch in batches(3):
        backward(model, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
        for mine, theirs in zip(average.parameters(), model.parameters()):
            mine.data.copy_(theirs.data)
        for name, value in average.state_dict().items():
            param = dict(model.named_parameters()).get(name, value)
            assert torch.equal(value, param.detach().float()), name
    exact = average.state_dict()["0.bias"]
    exact.data.fill_(0.1)
    average[0].bias.data[:2] = 3.0
    again = average.state_dict()["0.bias"]
    assert again[:2].tolist() == [3.0, 3.0]
    assert torch.equal(again[2:], torch.full((14,), 0.1))


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
    assert average(batches(1)[0][0]).abs().max() == 0


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
    weights = fp32_weights(model)
    amp.shutdown()
    assert all(p.dtype is torch.float32 for p in model.parameters())
    return weights, model[0].weight.is_contiguous(memory_format=torch.channels_last), fp32_weights(model)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("relaid", [{0}, {2}, {0, 1}, {0, 1, 2}])
def test_a_model_is_laid_out_anew_after_initialize(level, relaid):
    weights, channels_last, after = _conv_training(level, relaid)
    plain, _, plain_after = _conv_training(level, set())
    assert channels_last == (relaid != {0, 1})
    bound = 1e-5 if level == "O0" else 1e-2  # convolutions add in another order
    assert far(weights, plain) < bound
    assert far(after, plain_after) < bound


def _accumulating(level, how, moment):
    """Gradients are never cleared; `moment`: when the model is laid out anew, in the second iteration."""
    model = _conv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0, **how)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    for step in range(4):
        now = moment if step == 1 else ""
        with amp.scale_loss(model(x).float().square().mean(), optimizer) as scaled:
            scaled.backward()
            if now == "in the block":
                model.to(memory_format=torch.channels_last)
        if now.startswith("before step"):
            model.to(memory_format=torch.channels_last)
            if now.endswith("forward"):
                model.eval()(x)
                model.train()
        optimizer.step()
        if now == "after step":
            model.to(memory_format=torch.channels_last)
        with torch.no_grad():
            model(x)
    weights = fp32_weights(model)
    channels_last = model[0].weight.is_contiguous(memory_format=torch.channels_last)
    amp.shutdown()
    return weights, channels_last, model[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("moment", ["in the block", "before step", "before step and a forward", "after step"])
@pytest.mark.parametrize(
    ("level", "how"), [("O2", {}), ("O5", {}), ("O5", {"master_weights": "split"})], ids=["O2", "O5", "split"]
)
def test_a_layout_that_changes_under_gradients_stays(level, how, moment):
    weights, *channels_last = _accumulating(level, how, moment)
    plain, *_ = _accumulating(level, how, "")
    assert channels_last == [True, True]
    assert far(weights, plain) < 1e-2  # convolutions add in another order


@pytest.mark.parametrize("level", CASTS_MODEL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shutdown_ends_what_a_script_gave_another_type(level, dtype):
    model = net()
    forward = nn.functional.linear
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = fp32_weights(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    model.to(dtype)
    amp.shutdown()
    assert all(p.dtype is torch.float32 for p in model.parameters())
    assert far(fp32_weights(model), start) < 0.01
    assert not amp.initialized(model) and nn.functional.linear is forward
    model(batches(1)[0][0])
