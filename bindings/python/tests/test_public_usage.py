# SPDX-License-Identifier: Apache-2.0
"""The call sequences by which well-known trainers used apex.amp, one test each, on the CPU, by Apex's own names."""

import copy
import importlib
import io
import math
import pickle
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

import libamp  # noqa: E402
from levels import DYNAMIC  # noqa: E402
from libamp import apex_shim  # noqa: E402

nn, F = torch.nn, torch.nn.functional
LEVELS = ["O0", "O1", "O2", "O3"]


@pytest.fixture
def amp():
    """apex.amp, by that name; afterwards nothing is left."""
    libamp.install_apex()
    yield importlib.import_module("apex.amp")
    sys.modules["apex.amp"].shutdown()
    apex_shim.remove()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 16, 3)

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x))).flatten(1))


def make(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = Net()
    return model, optimizer(model.parameters(), **({"lr": 0.05} | options))


def data(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 1, 4, 4, generator=g), torch.randint(3, (8,), generator=g)


def backward(amp, model, optimizer, seed=0, **options):
    x, y = data(seed)
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer, **options) as scaled_loss:
        scaled_loss.backward()
    return loss.item()


class ApexScaler:
    """A scaler object around amp, as trainers of image classifiers have it."""

    state_dict_key = "amp"

    def __init__(self, amp):
        self.amp = amp

    def __call__(self, loss, optimizer, clip_grad=None, create_graph=False):
        with self.amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward(create_graph=create_graph)
        if clip_grad is not None:
            nn.utils.clip_grad_norm_(self.amp.master_params(optimizer), clip_grad)
        optimizer.step()

    def state_dict(self):
        return self.amp.state_dict() if "state_dict" in self.amp.__dict__ else None

    def load_state_dict(self, state):
        if "load_state_dict" in self.amp.__dict__:
            self.amp.load_state_dict(state)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_scaler_object_with_an_average_of_the_model(amp, create_graph):
    model, optimizer = make(torch.optim.AdamW)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    average, scaler = copy.deepcopy(model), ApexScaler(amp)
    x, y = data()
    losses = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward")  # torch's, about create_graph
        for _ in range(10):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler(loss, optimizer, clip_grad=1.0, create_graph=create_graph)
            losses.append(loss.item())
            with torch.no_grad():
                for a, p in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                    a.copy_(a * 0.9 + p * 0.1) if a.is_floating_point() else a.copy_(p)
    assert losses[-1] < losses[0]
    assert scaler.state_dict()["loss_scaler0"]["unskipped"] == 10
    average.eval()
    assert average(x).shape == (8, 3)
    scaler.load_state_dict(scaler.state_dict())


@pytest.mark.parametrize("level", LEVELS)
def test_save_the_whole_model(amp, level):
    model, optimizer = make()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    backward(amp, model, optimizer)
    optimizer.step()
    model.eval()
    x, _ = data()
    buffer = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)["model"]
    twin = copy.deepcopy(model)
    pickled = pickle.loads(pickle.dumps(model))
    for other in (loaded, twin, pickled):
        torch.testing.assert_close(
            other(x).float(), model(x).float(), rtol=2e-2, atol=2e-2
        )  # fp16 beside FP32 at the most


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_that_is_not_finite_is_seen_by_the_norm(amp, level):
    model, optimizer = make()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x, y = data()
    for factor in (1.0, math.inf):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * factor
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        norm = nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        assert math.isfinite(norm) == (factor == 1.0)


def test_one_loss_for_a_list_of_optimizers(amp):
    one, two = Net(), Net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
    [one, two], optimizers = amp.initialize([one, two], optimizers, opt_level="O1", verbosity=0)
    before = [copy.deepcopy(m.state_dict()) for m in (one, two)]
    x, y = data()
    loss = F.cross_entropy(one(x) + two(x), y)
    with amp.scale_loss(loss, optimizers) as scaled_loss:
        scaled_loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    for model, old in zip((one, two), before, strict=True):
        assert not torch.equal(model.fc.weight, old["fc.weight"])


@pytest.mark.parametrize("level", LEVELS)
def test_data_parallel_behind_initialize(amp, level):
    model, optimizer = make()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    model = nn.DataParallel(model)
    first = backward(amp, model, optimizer)
    for _ in range(5):
        optimizer.step()
        optimizer.zero_grad()
        last = backward(amp, model, optimizer)
    assert last < first


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("decreases", [(0, 1, 2)])
def test_each_loss_halves_its_own_scale(amp, level, decreases, capsys):
    model, optimizer = make()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, num_losses=3)
    if amp._amp_state.opt_properties.loss_scale != "dynamic":
        assert level in ("O0", "O3")
        return
    scalers = amp._amp_state.loss_scalers
    initial = [scaler.loss_scale() for scaler in scalers]
    skipped = 0
    for index, count in enumerate(decreases):
        for _ in range(count):
            optimizer.zero_grad()
            x, _ = data()
            loss = model(x).float().mean() * 2.0**120
            with amp.scale_loss(loss, optimizer, loss_id=index) as scaled_loss:
                scaled_loss.backward(retain_graph=True)
            weight = model.fc.weight.clone()
            optimizer.step()
            assert torch.equal(model.fc.weight, weight)
            skipped += 1
    assert [scaler.loss_scale() for scaler in scalers] == [a / 2**n for a, n in zip(initial, decreases, strict=True)]
    assert capsys.readouterr().out.count("Gradient overflow.  Skipping step, loss scaler") == skipped


def test_a_level_for_each_fold(amp):
    """Cross validation: initialize again and again, each time with a new model."""
    for level in [*LEVELS, "O1"]:
        model, optimizer = make()
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        assert backward(amp, model, optimizer) > 0
        optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_schedulers_hold_the_optimizer_and_do_not_complain(amp, level):
    model, optimizer = make()
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        for factor in (math.inf, 1.0, 1.0):
            optimizer.zero_grad()
            x, y = data()
            loss = F.cross_entropy(model(x), y) * factor
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            scheduler.step()
            plateau.step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.05 / 8


def test_disabled_is_plain_pytorch(amp):
    model, optimizer = make()
    initialized, same = amp.initialize(model, optimizer, enabled=False, opt_level="O2")
    assert initialized is model and same is optimizer
    loss = F.cross_entropy(model(data()[0]), data()[1])
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
        scaled_loss.backward()
    optimizer.step()
    with amp.disable_casts():
        assert model(data()[0]).dtype == torch.float32
    assert isinstance(amp.state_dict(), dict)


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_are_unfrozen_later(amp, level):
    """Fine-tuning: the head first, then add_param_group for the rest."""
    model, _ = make()
    optimizer = torch.optim.Adam(model.fc.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    backward(amp, model, optimizer)
    optimizer.step()
    before = model.conv.weight.detach().clone()
    optimizer.add_param_group({"params": list(model.conv.parameters()), "lr": 0.02})
    for seed in range(3):
        optimizer.zero_grad()
        model.zero_grad()
        backward(amp, model, optimizer, seed)
        optimizer.step()
    assert not torch.equal(model.conv.weight, before)
    assert len(list(amp.master_params(optimizer))) == 4


def test_fairseqs_norm_by_amp_c(amp):
    multi_tensor_l2norm = importlib.import_module("amp_C").multi_tensor_l2norm
    grads = [torch.randn(7), torch.randn(3, 5), torch.randn(1)]
    has_inf = torch.zeros((1, 1), dtype=torch.int)
    norm = multi_tensor_l2norm(2048 * 32, has_inf, [grads], False)[0]
    wanted = torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads]).double())
    torch.testing.assert_close(norm.double().squeeze(), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", DYNAMIC)
def test_a_gradient_penalty(amp, level):
    """Wasserstein GANs: the gradient of the critic with respect to its input is itself differentiated."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(critic.parameters())
    critic, optimizer = amp.initialize(critic, optimizer, opt_level=level, verbosity=0)
    x = torch.randn(5, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    penalty = ((gradient.float().norm(dim=1) - 1) ** 2).mean()
    with amp.scale_loss(penalty, optimizer) as scaled_loss:
        scaled_loss.backward()
    grads = [p.grad for p in amp.master_params(optimizer) if p.grad is not None]
    assert grads and all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)
    assert sum(g.abs().sum() for g in grads) > 0


@pytest.mark.parametrize("found", ["by amp", "by the caller", "by nobody"])
def test_a_recipe_that_checks_and_decides_itself(amp, found):
    """Gradients are reduced behind the last backward; the scaler is asked to decide, the step is the recipe's."""
    model, optimizer = make()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    scaler = amp._amp_state.loss_scalers[0]
    before = model.fc.weight.detach().clone()
    x, y = data()
    loss = F.cross_entropy(model(x), y) * (math.inf if found == "by amp" else 1)
    with amp.scale_loss(loss, optimizer, delay_overflow_check=True) as scaled_loss:
        scaled_loss.backward()
    assert scaler.loss_scale() == 65536.0
    kept, scaler._overflow_buf = scaler._overflow_buf, torch.tensor([int(found == "by the caller")], dtype=torch.int32)
    had_overflow = scaler.update_scale()
    scaler._overflow_buf = kept
    assert had_overflow is (found != "by nobody")
    assert scaler.loss_scale() == (32768.0 if had_overflow else 65536.0)
    if not had_overflow:
        optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(model.fc.weight, before) is had_overflow
    backward(amp, model, optimizer)  # what was decided is over
    optimizer.step()
    assert not torch.equal(model.fc.weight, before)
