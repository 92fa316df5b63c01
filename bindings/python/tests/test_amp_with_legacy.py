# SPDX-License-Identifier: Apache-2.0
"""amp together with the other parts of Apex: fused optimizers, LARC, DistributedDataParallel, SyncBatchNorm."""

import warnings

import pytest
import torch
from levels import LEVELS
from libamp.torch import amp, parallel
from libamp.torch import optimizers as fused
from libamp.torch.fp16_utils import FP16_Optimizer
from libamp.torch.parallel.LARC import LARC
from ranks import on_ranks
from torch import nn


def net():
    torch.manual_seed(5)
    # no bias before the batch norm: its gradient is rounding alone, which Adam would make steps of
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def batch(rank, world, step=0, rows=8):
    torch.manual_seed(100 + step)
    whole = torch.randn(world * rows, 6)
    return whole if rank is None else whole[rank * rows : (rank + 1) * rows]


def train(model, optimizer, steps, inputs, micro=1, clip=None):
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro):
            loss = model(inputs(step * micro + part)).float().square().mean() / micro
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), clip)
        optimizer.step()


OPTIMIZERS = {
    "sgd": (lambda p: fused.FusedSGD(p, 0.05, momentum=0.9), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
    "sgd-unmaterialized": (
        lambda p: fused.FusedSGD(p, 0.05, momentum=0.9, materialize_master_grads=False),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    ),
    "adam": (lambda p: fused.FusedAdam(p, 0.01), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.0)),
    "adagrad": (lambda p: fused.FusedAdagrad(p, 0.05), lambda p: torch.optim.Adagrad(p, 0.05)),
    "larc": (
        lambda p: LARC(torch.optim.SGD(p, 0.05, weight_decay=0.01)),
        lambda p: LARC(fused.FusedSGD(p, 0.05, weight_decay=0.01)),
    ),
}


# Not at O3: torch's Adam and Adagrad lose their eps in FP16, and become infinite.
PAIRS = [(name, level) for name in OPTIMIZERS for level in LEVELS if level != "O3" or name not in ("adam", "adagrad")]


def unit(level):
    return torch.finfo({"O0": torch.float32, "O4": torch.bfloat16, "O5": torch.bfloat16}.get(level, torch.float16)).eps


@pytest.mark.parametrize(("name", "level"), PAIRS)
def test_fused_optimizers_train_as_torchs_do(name, level):
    """Both see the same gradients as long as their weights are equal: an FP32 unit apart makes another unit of 16 bits
    here and there, so that the weights agree to what some steps of it are."""
    results = []
    for make in OPTIMIZERS[name]:
        model = net()
        optimizer = make(model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=64.0, verbosity=0)
        train(model, optimizer, 4, lambda step: batch(None, 1, step), micro=2, clip=1.0)
        results.append([p.detach().clone() for p in amp.master_params(optimizer)])
        amp.shutdown()
    for mine, its in zip(*results, strict=True):
        assert mine.dtype == its.dtype
        torch.testing.assert_close(mine.float(), its.float(), rtol=0, atol=16 * unit(level) * 0.2)


@pytest.mark.parametrize("make", [fused.FusedLAMB, fused.FusedNovoGrad], ids=lambda m: m.__name__)
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
def test_other_fused_optimizers_learn(level, make):
    model = net()
    model, optimizer = amp.initialize(model, make(model.parameters(), lr=0.05), opt_level=level, verbosity=0)
    before = float(model(batch(None, 1)).detach().float().square().mean())
    train(model, optimizer, 20, lambda step: batch(None, 1))
    assert float(model(batch(None, 1)).detach().float().square().mean()) < before / 2


@pytest.mark.parametrize("make", [lambda p: fused.FusedAdam(p, 0.1), lambda p: LARC(fused.FusedSGD(p, 0.1))])
def test_an_overflow_skips_their_step(make):
    model = net()
    model, optimizer = amp.initialize(model, make(model.parameters()), opt_level="O2", verbosity=0)
    before = [p.detach().clone() for p in amp.master_params(optimizer)]
    with amp.scale_loss(model(batch(None, 1)).float().sum() * float("inf"), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, amp.master_params(optimizer), strict=True))


def test_a_skipped_step_of_larc_counts_for_the_scheduler_of_the_optimizer_inside():
    """Schedulers take torch's optimizers alone, so they got `larc.optim`."""
    model = net()
    optimizer = LARC(torch.optim.SGD(model.parameters(), 0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optim, 1, gamma=0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O5", loss_scale="dynamic", verbosity=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (float("inf"), 1.0):
            optimizer.zero_grad()
            with amp.scale_loss(model(batch(None, 1)).float().sum() * factor, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
            assert amp.stepped(optimizer) is (factor == 1.0)
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 / 4


def test_initialize_refuses_an_fp16_optimizer():
    model = net()
    with pytest.raises(RuntimeError):
        amp.initialize(model, FP16_Optimizer(torch.optim.SGD(model.parameters(), 0.1)), opt_level="O2", verbosity=0)


def _distributed(rank, world, level, options, micro):
    model = parallel.convert_syncbn_model(net())
    optimizer = fused.FusedSGD(model.parameters(), 0.05, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=64.0, verbosity=0)
    model = parallel.DistributedDataParallel(model, **options)
    train(model, optimizer, 4, lambda step: batch(rank, world, step), micro)
    masters = [p.detach().clone() for p in amp.master_params(optimizer)]
    params = [p.detach().clone() for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    return masters, params, buffers


OVERLAP, DELAY = {"message_size": 20}, {"delay_allreduce": True}


@pytest.mark.parametrize(
    ("level", "options", "micro"),
    [
        ("O0", DELAY, 1),
        ("O1", OVERLAP, 2),
        ("O2", OVERLAP, 1),
        ("O2", DELAY, 2),
        ("O3", OVERLAP, 2),
        ("O5", OVERLAP, 2),
    ],
)
def test_two_ranks_train_as_one_with_the_joint_batch(level, options, micro):
    (masters, params, buffers), other = on_ranks(_distributed, level, options, micro)
    for mine, its in zip(masters + params + buffers, [tensor for tensors in other for tensor in tensors], strict=True):
        assert torch.equal(mine, its)  # Apex: tests/distributed/amp_master_params compares ranks
    for master, param in zip(masters, params, strict=True):
        assert torch.equal(master.to(param.dtype), param)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O0", verbosity=0)
    train(model, optimizer, 4, lambda step: batch(None, 2, step), micro)
    for mine, whole in zip(masters, amp.master_params(optimizer), strict=True):
        # Forward and backward in 16 bits: some dozen roundings of numbers around 1 a step
        torch.testing.assert_close(mine.float(), whole.detach(), rtol=0, atol=12 * 4 * unit(level) * 0.5)


def _skipping(rank, world):
    """Only rank 1's gradient overflows: both skip, since the sum does."""
    model = net()
    model, optimizer = amp.initialize(model, fused.FusedSGD(model.parameters(), 0.1), opt_level="O2", verbosity=0)
    model = parallel.DistributedDataParallel(model)
    loss = model(batch(rank, world)).float().square().mean() * (float("inf") if rank == 1 else 1.0)
    with amp.scale_loss(loss, optimizer) as scaled:
        before = [p.detach().clone() for p in amp.master_params(optimizer)]
        scaled.backward()
    optimizer.step()
    same = all(torch.equal(a, b) for a, b in zip(before, amp.master_params(optimizer), strict=True))
    return same, amp.state_dict()["loss_scaler0"]["loss_scale"]


def test_all_ranks_skip_together():
    assert on_ranks(_skipping) == [(True, 2.0**15), (True, 2.0**15)]
