# SPDX-License-Identifier: Apache-2.0
"""amp.scale_loss: gradients against FP32 by hand, whatever the level, the number of models, optimizers and losses, and
where an overflow strikes."""
import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

from levels import DYNAMIC, LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import _amp_state  # noqa: E402

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")))


@pytest.fixture(autouse=True)
def _ends():
    yield
    amp.shutdown()
    _amp_state.allow_incoming_model_not_fp32 = False


class Mixed(torch.nn.Module):
    """An FP32 and an FP16 parameter, as Apex's own tests have."""

    def __init__(self, unique, device="cpu"):
        super().__init__()
        steps = torch.arange(2, device=device, dtype=torch.float32)
        self.weight0 = torch.nn.Parameter(unique + steps)
        self.weight1 = torch.nn.Parameter((1.0 + unique + steps).half())

    def forward(self, x):
        return ((x * self.weight0.float()) * self.weight1.float()).sum()


def _initialize_mixed(models, optimizers, level, **kwargs):
    _amp_state.allow_incoming_model_not_fp32 = True
    result = amp.initialize(models, optimizers, opt_level=level, verbosity=0, cast_model_type=False, **kwargs)
    _amp_state.allow_incoming_model_not_fp32 = False
    return result


def _reference(device, iterations, skip):
    """The gradients of each iteration, and the parameters at the end."""
    models = [Mixed(1, device), Mixed(2, device)]
    groups = [{"params": m.parameters(), "lr": 0.25 * (i + 1)} for i, m in enumerate(models)]
    optimizer = torch.optim.SGD(groups, momentum=0.125)
    grads = []
    x = torch.ones(2, device=device)
    for i in range(iterations):
        if i == skip:
            continue
        optimizer.zero_grad()
        models[0](x).backward()
        models[1](x).backward()
        grads.append([p.grad.float().clone() for m in models for p in m.parameters()])
        optimizer.step()
    return grads, [p.detach().float() for m in models for p in m.parameters()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("level", "inject"), [("O0", -1), ("O1", -1), ("O2", -1), ("O3", -1), ("O1", 1), ("O2", 1)])
@pytest.mark.parametrize("where", ("weight0", "weight1"))
@pytest.mark.parametrize("how", ("none", "zero", "model"))
@pytest.mark.parametrize("scalers", (1, 2))
def test_two_models_two_losses_one_optimizer(device, level, inject, where, how, scalers):
    grads, params = _reference(device, 3, inject)
    models = [Mixed(1, device), Mixed(2, device)]
    groups = [{"params": m.parameters(), "lr": 0.25 * (i + 1)} for i, m in enumerate(models)]
    optimizer = torch.optim.SGD(groups, momentum=0.125)
    models, optimizer = _initialize_mixed(models, optimizer, level, num_losses=scalers)
    for scaler in _amp_state.loss_scalers:
        if scaler.dynamic:
            scaler._loss_scale = 4.0
    x = torch.ones(2, device=device)
    unskipped = 0
    for i in range(3):
        if how == "model":
            for model in models:
                model.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=how == "none")
        for which, model in enumerate(models):
            with amp.scale_loss(model(x), optimizer, loss_id=which % scalers) as scaled:
                scaled.backward()
                if i == inject and which == 0:
                    getattr(model, where).grad[0] = float("inf")
        if i != inject:
            for master, expected in zip(amp.master_params(optimizer), grads[unskipped], strict=True):
                torch.testing.assert_close(master.grad.float(), expected)
            unskipped += 1
        optimizer.step()
        assert amp.stepped(optimizer) is (i != inject)
    found = [p for m in models for p in m.parameters()]
    for param, master, expected in zip(found, amp.master_params(optimizer), params, strict=True):
        torch.testing.assert_close(param.detach().float(), expected, rtol=2e-3, atol=2e-3)
        assert torch.equal(param, master.to(param.dtype))
        assert (master.dtype is torch.float32) == (level == "O2" or param.dtype is torch.float32)


@pytest.mark.parametrize("level", DYNAMIC)
@pytest.mark.parametrize("inject", (0, 1, 2))
def test_three_losses_two_optimizers_skip_apart(level, inject):
    """Loss 0 is optimizer 0's, loss 1 is both's, loss 2 is optimizer 1's."""
    models = [Mixed(1), Mixed(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in models]
    models, optimizers = _initialize_mixed(models, optimizers, level, num_losses=3)
    for scaler in _amp_state.loss_scalers:
        scaler._loss_scale = 4.0
    before = [[p.detach().clone() for p in m.parameters()] for m in models]
    for loss_id, takers in enumerate(([0], [0, 1], [1])):
        loss = sum(models[i](torch.ones(2)) for i in takers)
        with amp.scale_loss(loss, [optimizers[i] for i in takers], loss_id=loss_id) as scaled:
            (scaled * float("inf") if loss_id == inject else scaled).backward()
    for i, optimizer in enumerate(optimizers):
        optimizer.step()
        skipped = inject in ((0, 1), (1, 2))[i]
        assert amp.stepped(optimizer) is not skipped
        for param, old in zip(models[i].parameters(), before[i], strict=True):
            assert torch.equal(param, old) is skipped
    scales = [scaler.loss_scale() for scaler in _amp_state.loss_scalers]
    assert scales == [2.0 if i == inject else 4.0 for i in range(3)]


KINDS = [(level, kind) for level in LEVELS for kind in ("plain", "delay_unscale")]


@pytest.mark.parametrize(("level", "kind"), [*KINDS, ("O1", "two scales"), ("O2", "two scales")])
@pytest.mark.parametrize("scale", (None, 1.0, 128.0))
def test_accumulation_sums_as_fp32_does(level, kind, scale):
    """Also at a static scale of 1 with masters, where Apex lost batch norm's first gradients (a bug)."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    reference = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    reference.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=scale, num_losses=2)
    if scale is None and _amp_state.loss_scalers[0].dynamic:
        _amp_state.loss_scalers[0]._loss_scale = 256.0
        _amp_state.loss_scalers[1]._loss_scale = 64.0
    batches = torch.randn(3, 16, 8)
    for i, x in enumerate(batches):
        reference(x).pow(2).mean().backward()
        delay = kind == "delay_unscale" and i < 2
        with amp.scale_loss(model(x).pow(2).mean(), optimizer, loss_id=i % 2 if kind == "two scales" else 0,
                            delay_unscale=delay) as scaled:
            scaled.backward()
    low = level not in ("O0",)
    for master, param in zip(amp.master_params(optimizer), reference.parameters(), strict=True):
        torch.testing.assert_close(
            master.grad.float(), param.grad, rtol=0.1 if low else 1e-5, atol=3e-2 if low else 1e-5
        )


@pytest.mark.parametrize("level", ("O1", "O2", "O5"))
def test_an_exception_leaves_gradients_as_they_were(level):
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=1024.0)
    with amp.scale_loss(model(torch.ones(2, 3)).sum(), optimizer) as scaled:
        scaled.backward()
    before = [p.grad.clone() for p in amp.master_params(optimizer)]
    with pytest.raises(ZeroDivisionError), amp.scale_loss(model(torch.ones(2, 3)).sum(), optimizer) as scaled:
        scaled.backward()
        raise ZeroDivisionError
    for param, old in zip(amp.master_params(optimizer), before, strict=True):
        assert torch.equal(param.grad, old)
    with amp.scale_loss(model(torch.ones(2, 3)).sum(), optimizer) as scaled:
        scaled.backward()
    for param, old in zip(amp.master_params(optimizer), before, strict=True):
        torch.testing.assert_close(param.grad, 2 * old)


@pytest.mark.parametrize("level", ("O0", "O3", "O4"))
@pytest.mark.parametrize("delay", (False, True))
def test_an_exception_at_scale_one_leaves_none_where_none_was(level, delay):
    """Nothing is set aside there: what had a gradient keeps what backward added to it, as without amp."""
    body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (body, head)]
    (body, head), optimizers = amp.initialize([body, head], optimizers, opt_level=level, verbosity=0)
    with amp.scale_loss(head(torch.ones(2, 3)).sum(), optimizers) as scaled:
        scaled.backward()
    before = [param.grad.clone() for param in head.parameters()]
    loss = head(body(torch.ones(2, 3))).sum()
    with pytest.raises(ZeroDivisionError), amp.scale_loss(loss, optimizers, delay_unscale=delay) as scaled:
        scaled.backward()
        assert all(param.grad is not None for param in body.parameters())
        raise ZeroDivisionError
    assert all(param.grad is None for param in body.parameters())
    bias, old = list(head.parameters())[1], before[1]
    assert torch.equal(bias.grad, 2 * old)  # the documented exception
    with amp.scale_loss(head(body(torch.ones(2, 3))).sum(), optimizers) as scaled:
        scaled.backward()
    assert all(param.grad is not None for param in body.parameters())


@pytest.mark.parametrize("level", ("O0", "O2"))
def test_tuples_of_optimizers_are_lists(level):
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    models, optimizers = amp.initialize(models, optimizers, opt_level=level, verbosity=0, init_scale=1024.0)
    for _ in range(2):
        with amp.scale_loss(sum(m(torch.ones(1, 2)).sum() for m in models), tuple(optimizers)) as scaled:
            scaled.backward()
    for optimizer in optimizers:
        for param in amp.master_params(optimizer):
            torch.testing.assert_close(param.grad, torch.full_like(param, 2.0))


def test_delayed_overflow_check_decides_once():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer, delay_overflow_check=True) as scaled:
        (scaled * float("nan")).backward()
    assert _amp_state.loss_scalers[0].loss_scale() == 65536.0
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        scaled.backward()
    assert _amp_state.loss_scalers[0].loss_scale() == 32768.0
    optimizer.step()
    assert amp.stepped(optimizer) is False


def test_errors():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O0", verbosity=0, num_losses=2)
    loss = model(torch.ones(1, 2)).sum()
    with pytest.raises(IndexError), amp.scale_loss(loss, optimizer, loss_id=2):
        pass
    with pytest.raises(AttributeError), amp.scale_loss(loss, stranger):
        pass
    with pytest.raises(TypeError, match="loss_id must be an int, not '0'"):
        amp.scale_loss(loss, optimizer, loss_id="0")
    with (block := amp.scale_loss(loss, optimizer, loss_id=torch.tensor(-1))) as scaled:
        scaled.backward()
    with pytest.raises(RuntimeError, match="entered before"), block:
        pass


# ---- the step ----


@pytest.mark.parametrize("level", DYNAMIC)
@pytest.mark.parametrize("when", ("before", "after"))
def test_schedulers_never_warn(level, when):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def schedulers():
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=20)
        return [torch.optim.lr_scheduler.StepLR(optimizer, 1), one_cycle]

    made = schedulers() if when == "before" else []
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    made = made or schedulers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3):  # the very first step is skipped
            with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
                (scaled * float("inf") if i == 0 else scaled).backward()
            assert optimizer.step() is None
            assert optimizer._amp_stash.stepped is (i > 0)
            optimizer.zero_grad()
            for scheduler in made:
                scheduler.step()
        amp.shutdown()
        optimizer.step()
        for scheduler in made:
            scheduler.step()


def test_a_skip_prints_apexs_line(capsys):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=1)
    capsys.readouterr()
    for _ in range(30):
        with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
            (scaled * float("inf")).backward()
        optimizer.step()
        assert all(p.grad is None for p in amp.master_params(optimizer))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0"
    assert sum(line.startswith("Gradient overflow.") for line in lines) == 11  # the first ten, then the sixteenth
    assert sum("10 steps in a row were skipped" in line for line in lines) == 1
    amp.shutdown()
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        (scaled * float("inf")).backward()
    optimizer.step()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("check", (False, True))
@pytest.mark.parametrize(
    ("level", "masters"), [("O0", None), ("O3", None), ("O4", None), ("O5", None), ("O5", "split")]
)
def test_a_static_scale_of_one_steps_on_what_is_not_finite_unless_it_is_checked(level, masters, check):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=level, verbosity=0, master_weights=masters, check_finite=check
    )
    before = [value.tolist() for value in model.state_dict().values()]
    for factor in (float("inf"), 1.0):
        for param in amp.master_params(optimizer):
            param.grad = None
        with amp.scale_loss(model(torch.ones(1, 2)).float().sum() * factor, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        assert all(bool(value.isfinite().all()) for value in model.parameters()) == check
        same = [value.tolist() == old for value, old in zip(model.state_dict().values(), before)]
        assert same == [check and factor != 1.0] * len(same)


@pytest.mark.parametrize("level", ("O0", "O1", "O2"))
def test_closures_with_a_static_scale(level):
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        return loss

    first = closure().item()
    for _ in range(3):
        optimizer.step(closure)
    columns = torch.cat([x, torch.ones(64, 1)], 1)
    best = (columns @ torch.linalg.lstsq(columns, y).solution - y).pow(2).mean()
    assert closure().item() == pytest.approx(float(best), rel=0.05)
    assert closure().item() < first


def test_closures_with_a_dynamic_scale_are_refused():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with pytest.raises(RuntimeError, match="loss_scale="):
        optimizer.step(lambda: None)


@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O3"))
@pytest.mark.parametrize("how", (list, tuple, iter))
def test_add_param_group(level, how):
    """Against the same run with the group from the start."""
    def run(late):
        torch.manual_seed(0)
        models = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
        first = [{"params": list(models[0].parameters())}]
        rest = {"params": how(models[1].parameters()), "lr": 0.5}
        optimizer = torch.optim.SGD(first if late else [*first, rest], lr=0.25, momentum=0.5)
        models, optimizer = amp.initialize(models, optimizer, opt_level=level, loss_scale=16.0, verbosity=0)
        for i in range(4):
            if late and i == 2:
                optimizer.add_param_group(rest)
            optimizer.zero_grad()
            for model in models[: 2 if i >= 2 else 1]:
                with amp.scale_loss(model(torch.ones(2, 4)).pow(2).mean(), optimizer) as scaled:
                    scaled.backward()
            optimizer.step()
        result = [p.detach().clone() for p in amp.master_params(optimizer)]
        found = itertools.chain(*(m.parameters() for m in models))
        for master, param in zip(amp.master_params(optimizer), found, strict=True):
            assert torch.equal(master.to(param.dtype), param)
        amp.shutdown()
        return result

    exact = level != "O2"  # a parameter that no optimizer lists has no master: it comes later, from 16 bits
    for late, early in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(late, early, rtol=0 if exact else 1e-3, atol=0 if exact else 1e-3)


def test_add_param_group_checks():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with pytest.raises(TypeError):
        optimizer.add_param_group([model.bias])
    with pytest.raises(TypeError):
        optimizer.add_param_group({"params": {model.bias}})
    optimizer.add_param_group({"params": model.bias})
    assert [p.dtype for p in amp.master_params(optimizer)] == [torch.float32] * 2


class Foreign:
    """An optimizer from outside torch."""

    def __init__(self, params):
        self.param_groups = [{"params": list(params), "lr": 0.5}]

    def step(self):
        with torch.no_grad():
            for param in self.param_groups[0]["params"]:
                param -= 0.5 * param.grad
        return "stepped"

    def zero_grad(self):
        for param in self.param_groups[0]["params"]:
            param.grad = None


@pytest.mark.parametrize("level", LEVELS)
def test_optimizers_from_outside_torch(level):
    model = torch.nn.Linear(2, 2)
    optimizer = Foreign(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=1024.0)
    before = [p.detach().clone() for p in amp.master_params(optimizer)]
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        scaled.backward()
    assert optimizer.step() == "stepped"
    for master, old in zip(amp.master_params(optimizer), before, strict=True):
        torch.testing.assert_close(master.detach(), old - 0.5, rtol=1e-2, atol=1e-2)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("level", ("O1", "O2", "O5"))
def test_clipping_the_masters_clips_the_step(level):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=1024.0)
    before = [p.detach().clone() for p in amp.master_params(optimizer)]
    with amp.scale_loss(model(torch.ones(1, 4)).sum(), optimizer) as scaled:
        scaled.backward()
    norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
    assert float(norm) == pytest.approx(20**0.5, rel=1e-3)
    optimizer.step()
    moved = torch.cat(
        [(old - p.detach()).flatten() for p, old in zip(amp.master_params(optimizer), before, strict=True)]
    )
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-3)


def test_a_gradient_that_the_user_puts_there_is_stepped_on():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0, init_scale=1024.0)
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        scaled.backward()
    weight, bias = amp.master_params(optimizer)
    weight.grad = torch.full_like(weight, 3.0)
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        scaled.backward()
    torch.testing.assert_close(weight.grad, torch.full_like(weight, 4.0))
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 2.0))
    old = weight.detach().clone()
    weight.grad = torch.full_like(weight, 7.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), old - 7.0)
    assert torch.equal(model.weight, weight.half())
