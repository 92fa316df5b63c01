# SPDX-License-Identifier: Apache-2.0
"""Scripts that have a scale_loss of their own, over the optimizers' private methods and the scalers."""

import math

import pytest

torch = pytest.importorskip("torch")

from levels import DYNAMIC, IN_BF16, LEVELS  # noqa: E402
from libamp.torch import amp  # noqa: E402

F = torch.nn.functional


def make(level, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if level not in IN_BF16:
        options.setdefault("loss_scale", "dynamic")
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, num_losses=2, verbosity=0, **options)
    amp._amp_state.loss_scalers[0]._loss_scale = 1024.0
    return model, optimizer, amp._amp_state.loss_scalers


def loss_of(model, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 6, generator=g), torch.randint(3, (8,), generator=g)
    return F.cross_entropy(model(x).float(), y)


def backward(optimizer, scaler, loss, prepare=True):
    if prepare:
        optimizer._prepare_amp_backward()
    (loss * scaler.loss_scale()).backward()
    scaler.clear_overflow_state()
    optimizer._post_amp_backward(scaler)


@pytest.mark.parametrize("loss_ids", [(0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("level", LEVELS)
def test_the_halves_by_hand_are_scale_loss(level, loss_ids):
    model, optimizer, _ = make(level)
    twin, by_hand, scalers = make(level)
    for seed in range(3):
        optimizer.zero_grad()
        by_hand.zero_grad()
        for loss_id in loss_ids:
            with amp.scale_loss(loss_of(model, seed), optimizer, loss_id=loss_id) as scaled_loss:
                scaled_loss.backward()
            backward(by_hand, scalers[loss_id], loss_of(twin, seed))
            assert not scalers[loss_id].update_scale()
        for a, b in zip(amp.master_params(optimizer), amp.master_params(by_hand), strict=True):
            assert a.grad is not None and torch.equal(a.grad, b.grad)
        optimizer.step()
        by_hand.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("level", DYNAMIC)
def test_the_scaler_decides_or_else_the_step(level, asked):
    model, optimizer, (scaler, _) = make(level)
    before = [param.detach().clone() for param in model.parameters()]
    backward(optimizer, scaler, loss_of(model) * math.inf)
    if asked:
        assert scaler.update_scale()
    else:
        optimizer.step()
        assert amp.stepped(optimizer) is False
    assert scaler.loss_scale() == 512.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.zero_grad()
    backward(optimizer, scaler, loss_of(model))
    optimizer.step()
    assert amp.stepped(optimizer) and scaler._unskipped == 1
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("level", DYNAMIC)
def test_without_the_first_half_all_gradients_are_new(level):
    """After brackets with delay_unscale the gradients that are there are scaled still."""
    model, optimizer, (scaler, _) = make(level)
    backward(optimizer, scaler, loss_of(model), prepare=False)
    assert not scaler.update_scale()
    grads = [param.grad.clone() for param in amp.master_params(optimizer)]
    optimizer.zero_grad()
    with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(grads, amp.master_params(optimizer), strict=True))


def test_a_backward_that_failed_is_forgotten():
    model, optimizer, (scaler, _) = make("O2")
    optimizer._prepare_amp_backward()
    (loss_of(model, 1) * 3).backward()  # and then the script gave up
    backward(optimizer, scaler, loss_of(model))
    grads = [param.grad.clone() for param in amp.master_params(optimizer)]
    model, optimizer, (scaler, _) = make("O2")
    backward(optimizer, scaler, loss_of(model))
    assert all(torch.equal(a, b.grad) for a, b in zip(grads, amp.master_params(optimizer), strict=True))


def test_a_scaler_of_somewhere_else_is_refused():
    _, optimizer, _ = make("O1")
    with pytest.raises(RuntimeError, match="loss_scalers"):
        optimizer._post_amp_backward(object())


@pytest.mark.parametrize("recipe", ["scale_loss", "by hand"])
def test_a_window_that_is_shortened_after_initialize(recipe):
    """As translators' trainers do, with a scale of their own too; an overflow begins it anew."""
    model, optimizer, (scaler, other) = make("O1")
    scaler._loss_scale, scaler._scale_seq_len = 64.0, 3
    scales, counts = [], []
    for step in range(8):
        optimizer.zero_grad()
        loss = loss_of(model) * (math.inf if step == 4 else 1.0)
        if recipe == "by hand":
            backward(optimizer, scaler, loss)
            if not scaler.update_scale():
                optimizer.step()
        else:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
        scales.append(scaler.loss_scale())
        counts.append(amp.state_dict()["loss_scaler0"]["unskipped"])
        assert scaler._unskipped == counts[-1] and amp.state_dict()["loss_scaler1"]["unskipped"] == 0
    assert counts == [1, 2, 0, 1, 0, 1, 2, 0]
    assert scales == [64.0, 64.0, 128.0, 128.0, 64.0, 64.0, 64.0, 128.0]
    assert scaler._scale_seq_len == 3 and other._scale_seq_len == 2000 and other.loss_scale() == 65536.0
    scaler._scale_seq_len = 1
    for wanted in (256.0, 512.0):
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            scaled_loss.backward()
        assert scaler.loss_scale() == wanted
    with pytest.raises(ValueError, match="window=3000"):
        scaler._scale_seq_len = 3000


def test_the_count_outlives_a_window_that_is_shortened_and_loaded():
    model, optimizer, (scaler, _) = make("O1")
    for _ in range(5):
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            scaled_loss.backward()
    for window in (8, 2000, 7):
        scaler._scale_seq_len = window
        assert scaler._unskipped == amp.state_dict()["loss_scaler0"]["unskipped"] == 5
    state = amp.state_dict()
    scaler._unskipped = 1
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 1
    amp.load_state_dict(state)
    assert amp.state_dict() == state
    scales = []
    for _ in range(3):
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            scaled_loss.backward()
        scales.append((scaler.loss_scale(), amp.state_dict()["loss_scaler0"]["unskipped"]))
    assert scales == [(1024.0, 6), (2048.0, 0), (2048.0, 1)]
