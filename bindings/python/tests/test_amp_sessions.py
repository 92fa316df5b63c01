# SPDX-License-Identifier: Apache-2.0
"""Several calls of initialize at a time, their ends, memory, threads, processes, and what Apex could not do."""
import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

from levels import DYNAMIC, LEVELS, PATCHES  # noqa: E402
from libamp.torch import amp  # noqa: E402
from libamp.torch.amp import _amp_state  # noqa: E402
from libamp.torch.amp.session import live  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint as run_checkpointed  # noqa: E402


def _pair(width=4):
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)


def _step(model, optimizer, **kwargs):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.ones(2, 4)).float().pow(2).mean(), optimizer, **kwargs) as scaled:
        scaled.backward()
    optimizer.step()


def test_each_session_has_its_own_level_and_scale():
    one, two = _pair(), _pair()
    amp.initialize(*one, opt_level="O1", verbosity=0)
    amp.initialize(*two, opt_level="O2", verbosity=0, max_loss_scale=16.0)
    _step(*one)
    _step(*two)
    assert one[0][0].weight.dtype is torch.float32
    assert two[0][0].weight.dtype is torch.float16
    x = torch.ones(2, 4)
    assert one[0](x).dtype is torch.float16
    assert two[0](x).dtype is torch.float32
    assert one[1]._amp_stash.session.context.scale(0) >= 32768.0
    assert _amp_state.loss_scalers[0].loss_scale() == 16.0
    with pytest.raises(RuntimeError, match="different"), amp.scale_loss(one[0](x).mean(), [one[1], two[1]]):
        pass
    amp.shutdown(two[0])
    assert not amp.initialized(two[1])
    assert amp.initialized(one[0])
    _step(*one)
    amp.shutdown(one[1])
    assert list(live()) == []
    assert torch.nn.functional.linear(x, one[0][0].weight).dtype is torch.float32


@pytest.mark.parametrize("level", LEVELS)
def test_shutdown_restores_everything(level):
    model, optimizer = _pair()
    names = {name: getattr(optimizer, name).__func__ for name in ("step", "zero_grad", "add_param_group")}
    params = list(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for _ in range(3):
        _step(model, optimizer)
    masters = [p.detach().clone() for p in amp.master_params(optimizer)]
    moments = [optimizer.state[p]["exp_avg"].clone() for p in amp.master_params(optimizer)]
    amp.shutdown()
    assert type(model) is nn.Sequential
    assert "_amp_forward" not in model.__dict__
    assert not hasattr(optimizer, "_amp_stash")
    assert {name: getattr(optimizer, name).__func__ for name in names} == names
    for param, found, master, moment in zip(params, optimizer.param_groups[0]["params"], masters, moments, strict=True):
        assert param is found
        assert param.dtype is torch.float32
        assert torch.equal(param, master.float())
        assert torch.equal(optimizer.state[param]["exp_avg"], moment.float())
    optimizer.zero_grad()
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("level", DYNAMIC)
def test_again_and_again(level):
    """Cross validation, searches: each fold initialises (apex#439, #626, #815)."""
    model, optimizer = _pair()
    for other in (level, "O0", level):
        amp.initialize(model, optimizer, opt_level=other, verbosity=0)
        _step(model, optimizer)
        amp.shutdown()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shut", (True, False))
def test_nothing_is_left_of_a_model_that_is_dropped(level, shut):
    gone = []
    for _ in range(3):
        model, optimizer = _pair()
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        _step(model, optimizer)
        gone += [weakref.ref(t) for t in (model, optimizer, *model.parameters(), *amp.master_params(optimizer))]
        gone.append(weakref.ref(optimizer._amp_stash.session.context))
        if shut:
            amp.shutdown()
        del model, optimizer
    _amp_state.loss_scalers = []
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []
    assert list(live()) == []


@pytest.mark.parametrize("level", DYNAMIC)
def test_threads_have_their_own_scopes(level):
    model, optimizer = _pair()
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    model.eval()
    x = torch.ones(2, 4)
    expected = model(x).detach()
    wrong = []

    def work(disable):
        for _ in range(50):
            if disable and level == "O1":
                with amp.disable_casts():
                    if torch.nn.functional.linear(x, model[0].weight).dtype is not torch.float32:
                        wrong.append("casts inside disable_casts")
            elif not torch.equal(model(x).detach(), expected):
                wrong.append("another result")

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class _Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.mm(torch.ones(4, 4), torch.full((4, 4), float(i)))


def test_data_loaders_work_in_forked_processes():
    model, optimizer = _pair()
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    for batch in torch.utils.data.DataLoader(_Data(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
        assert batch.shape == (2, 4, 4)
    _step(model, optimizer)


# ---- what Apex could not do ----


@pytest.mark.parametrize("level", ("O0", "O1", "O2"))
def test_gradient_penalty(level):
    """Double backward through scaled gradients (apex#873), against FP32."""
    torch.manual_seed(0)
    model, optimizer = _pair()
    reference, _ = _pair()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(8, 4)

    def penalty(gradient):
        return (gradient.float().norm(dim=1) - 1).pow(2).mean()

    z = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(reference(z).sum(), z, create_graph=True)
    penalty(gradient).backward()
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, init_scale=256.0 if level != "O0" else None)
    z = x.clone().requires_grad_()
    (scaled_gradient,) = torch.autograd.grad(amp.scale(model(z).sum(), optimizer=optimizer), z, create_graph=True)
    gradient = amp.unscale(scaled_gradient, optimizer=optimizer)
    with amp.scale_loss(penalty(gradient), optimizer) as scaled:
        scaled.backward()
    for master, param in zip(amp.master_params(optimizer), reference.parameters(), strict=True):
        if param.grad is not None:
            torch.testing.assert_close(master.grad, param.grad, rtol=3e-2, atol=3e-3)
    optimizer.step()


@pytest.mark.parametrize("level", DYNAMIC)
@pytest.mark.parametrize("reentrant", (True, False))
def test_checkpointing_recomputes_with_the_same_casts(level, reentrant):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self, checkpoint):
            super().__init__()
            self.checkpoint = checkpoint
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            if not self.checkpoint:
                return self.two(torch.relu(self.one(x)))

            def inner(t):
                return self.two(torch.relu(self.one(t)))

            return run_checkpointed(inner, x, use_reentrant=reentrant)

    results = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = Net(checkpoint)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with amp.scale_loss(model(x).float().pow(2).mean() * 1e-3, optimizer) as scaled:
            scaled.backward()
        results.append([p.grad.clone() for p in amp.master_params(optimizer)])
        amp.shutdown()
    for plain, recomputed in zip(*results, strict=True):
        assert torch.equal(plain, recomputed)


@pytest.mark.parametrize("level", DYNAMIC)
def test_a_gan_with_three_losses(level):
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    models = [discriminator, generator]
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in models]
    models, optimizers = amp.initialize(models, optimizers, opt_level=level, num_losses=3, verbosity=0)
    loss = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    for _ in range(20):
        discriminator.zero_grad()
        with amp.scale_loss(
            loss(discriminator(torch.randn(16, 2) + 2).float(), ones), optimizers[0], loss_id=0
        ) as scaled:
            scaled.backward()
        fake = generator(torch.randn(16, 2))
        with amp.scale_loss(loss(discriminator(fake.detach()).float(), zeros), optimizers[0], loss_id=1) as scaled:
            scaled.backward()
        optimizers[0].step()
        generator.zero_grad()
        with amp.scale_loss(loss(discriminator(fake).float(), ones), optimizers[1], loss_id=2) as scaled:
            scaled.backward()
        optimizers[1].step()
    assert all(torch.isfinite(p).all() for o in optimizers for p in amp.master_params(o))
    assert all(set(state) == {"loss_scale", "unskipped"} for state in amp.state_dict().values())


def test_many_skips_in_a_row_are_an_error_that_names_the_parameter():
    """Apex halves until the scale is 0 and divides by it (apex#777)."""
    model, optimizer = _pair()
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0, max_skips=5)
    with pytest.raises(RuntimeError, match=r"2\.bias|0\.weight|2\.weight|0\.bias"):
        for _ in range(6):
            with amp.scale_loss(model(torch.ones(2, 4)).mean(), optimizer) as scaled:
                (scaled * float("nan")).backward()
            optimizer.step()


# ---- the old API ----


def test_init_patches_for_bfloat16_too():
    handle = amp.init(patch_type=torch.bfloat16)
    x = torch.ones(2, 2)
    assert torch.mm(x, x).dtype is torch.bfloat16
    with pytest.raises(NotImplementedError):
        torch.ones(2, dtype=torch.bfloat16).exp_()
    handle._deactivate()
    assert torch.mm(x, x).dtype is torch.float32
    with pytest.raises(ValueError, match="patch_type"):
        amp.init(patch_type=torch.float64)


def test_init_and_its_handle():
    handle = amp.init(loss_scale=128.0)
    assert handle.is_active()
    assert handle.has_cache
    x = torch.ones(2, 2)
    assert torch.mm(x, x).dtype is torch.float16
    with handle._disable_casts():
        assert not handle.is_active()
        assert torch.mm(x, x).dtype is torch.float32
    with pytest.raises(RuntimeError, match="scale_loss is gone"):
        handle.scale_loss(x.sum(), None)
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = handle.wrap_optimizer(torch.optim.SGD([weight], lr=1.0), num_loss=2)
    for factor, stepped in ((float("inf"), False), (1.0, True)):
        before = weight.detach().clone()
        for k in range(2):
            with optimizer.scale_loss((weight * 2).sum()) as scaled:
                (scaled * (factor if k == 0 else 1.0)).backward()
        optimizer.step()
        assert torch.equal(weight.detach(), before - 4.0 if stepped else before)
        optimizer.zero_grad()
    with pytest.raises(NotImplementedError):
        optimizer.step(lambda: None)
    handle._deactivate()
    assert torch.mm(x, x).dtype is torch.float32
    off = amp.init(enabled=False)
    assert not off.is_active()
    with off.scale_loss(x, None) as same:
        assert same is x


@pytest.mark.parametrize("level", PATCHES)
def test_a_model_that_is_called_where_casts_are_disabled_casts_nothing(level):
    """An evaluation or a teacher in FP32: whatever disables, and whoever calls."""
    model, optimizer = _pair()
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x = torch.ones(2, 4)
    low, around = model(x).dtype, nn.Sequential(model)
    assert low in (torch.float16, torch.bfloat16)
    handle = _amp_state.handle
    for block in (
        amp.disable_casts,
        amp.exempt,
        lambda: amp.exempt(model),
        lambda: amp.exempt(around),
        handle._disable_casts,
    ):
        with block():
            assert around(x).dtype is torch.float32
            y = run_checkpointed(around, x.clone().requires_grad_(), use_reentrant=False)
            assert y.dtype is torch.float32
            y.sum().backward()
        assert around(x).dtype is low
    assert handle.is_active()
    with amp.disable_casts():
        assert not handle.is_active()
        y = run_checkpointed(model, x.clone().requires_grad_(), use_reentrant=False)
    y.sum().backward()  # what was computed without casts is so again
    y = run_checkpointed(around, x.clone().requires_grad_(), use_reentrant=False)
    with amp.disable_casts():  # and the other way
        y.float().sum().backward()


def test_disable_casts_nests_and_needs_no_handle():
    with amp.disable_casts():
        pass
    model, optimizer = _pair()
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    x = torch.ones(2, 2)
    with pytest.raises(ZeroDivisionError), amp.disable_casts():
        with amp.disable_casts():
            assert torch.mm(x, x).dtype is torch.float32
        assert torch.mm(x, x).dtype is torch.float32
        raise ZeroDivisionError
    assert torch.mm(x, x).dtype is torch.float16
