# SPDX-License-Identifier: Apache-2.0
"""Fused optimizers that unscale, skip and keep masters by themselves: capturable FusedAdam, FusedMixedPrecisionLamb."""

import pytest
import torch
from libamp.torch import optimizers as fused
from test_optimizers import LR, STEPS, gradient, run, train, values
from torch import nn


def scaled_training(make, dtype, steps=5, bad=2):
    """Gradients come 1024 times too large, and in one step infinite."""
    params = [nn.Parameter(v) for v in values(dtype)]
    optimizer = make(params)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(steps):
        scale = scaler.get_scale()
        scaler.scale(torch.zeros(()))  # it begins lazily
        for p, g in zip(params, gradient(step, values(torch.float32)), strict=True):
            p.grad = (g * 2.0**-6).to(dtype) * scale
            if step == bad and p.numel() > 100:
                p.grad.view(-1)[0] = float("inf")
        if step == 3:
            scaler.unscale_(optimizer)  # then nothing is left to unscale
        scaler.step(optimizer)
        scaler.update()
    return params, optimizer


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for the CPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grad_scaler_leaves_unscaling_and_skipping_to_the_step(dtype):
    for make in (
        lambda p: fused.FusedAdam(p, lr=LR, capturable=True),
        lambda p: fused.FusedAdam(p, lr=LR, capturable=True, master_weights=True),
        lambda p: fused.FusedMixedPrecisionLamb(p, lr=LR),
    ):
        params, optimizer = scaled_training(make, dtype)
        clean = [nn.Parameter(v) for v in values(dtype)]
        peer = make(clean)
        for step in (0, 1, 3, 4):
            for p, g in zip(clean, gradient(step, values(torch.float32)), strict=True):
                p.grad = (g * 2.0**-6).to(dtype)
            peer.step()
        assert all(torch.equal(a, b) for a, b in zip(params, clean, strict=True))
        if isinstance(optimizer, fused.FusedAdam):
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(params, clean, strict=True))
        assert int(optimizer.param_groups[0]["step"]) == 4
        assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize("make", [lambda p: fused.FusedAdam(p, capturable=True), fused.FusedMixedPrecisionLamb])
def test_the_count_of_steps_stays_one_tensor(make):
    """A captured graph knows it by its address."""
    params = [nn.Parameter(v) for v in values(torch.float32)]
    optimizer = run(make, params, 1)
    step = optimizer.param_groups[0]["step"]
    address = step.data_ptr()
    train(optimizer, params, range(1, 4))
    assert optimizer.param_groups[0]["step"].data_ptr() == address and int(step) == 4
    assert isinstance(optimizer.state_dict()["param_groups"][0]["step"], torch.Tensor)


FLAGGED = {
    "adam": lambda p: fused.FusedAdam(p, lr=LR, weight_decay=0.1),
    "clipped adam": lambda p: fused.FusedAdam(p, lr=LR, max_grad_norm=0.5),
    "sgd": lambda p: fused.FusedSGD(p, lr=LR, momentum=0.9),
    "dampened sgd": lambda p: fused.FusedSGD(p, lr=LR, momentum=0.9, dampening=0.1),
    "lamb": lambda p: fused.FusedLAMB(p, lr=LR),
    "novograd": lambda p: fused.FusedNovoGrad(p, lr=LR),
    "largest novograd": lambda p: fused.FusedNovoGrad(p, lr=LR, norm_type=0),
    "adagrad": lambda p: fused.FusedAdagrad(p, lr=LR),
}


@pytest.mark.parametrize("name", FLAGGED)
def test_a_step_that_skips_by_the_flag_is_none(name):
    """As amp has it where a GPU decides; the first step is the host's where it is another than the later ones."""
    clean, params = ([nn.Parameter(v) for v in values(torch.float32)] for _ in range(2))
    peer, optimizer = FLAGGED[name](clean), FLAGGED[name](params)
    train(peer, clean, (0, 2, 3))
    train(optimizer, params, (0,))
    assert not any(optimizer._begins(group) for group in optimizer.param_groups)
    for step, flag in ((1, 1.0), (2, 0.0), (3, 0.0)):
        optimizer.found_inf = torch.tensor(flag)
        train(optimizer, params, (step,))
        del optimizer.found_inf
    assert all(torch.equal(a, b) for a, b in zip(params, clean, strict=True))
    assert optimizer.state_dict()["param_groups"][0].get("step", 3) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("make", [lambda p: fused.FusedAdam(p, LR, capturable=True), fused.FusedMixedPrecisionLamb])
def test_steps_in_a_cuda_graph(make):
    sets = [[nn.Parameter(v.cuda()) for v in values(torch.float32)] for _ in range(2)]
    for params in sets:
        for p, g in zip(params, gradient(0, params), strict=True):
            p.grad = g.cuda()
    eager, captured = make(sets[0]), make(sets[1])
    for _ in range(5):
        eager.step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        captured.step()
        captured.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for _ in range(3):
        graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(*sets, strict=True))
    assert int(captured.param_groups[0]["step"]) == 5


def test_a_scaler_may_be_handed_to_step():
    params = [nn.Parameter(torch.ones(4))]
    optimizer = fused.FusedAdam(params, lr=0.5, capturable=True)

    class Scaler:  # what Apex asked of one
        def is_enabled(self):
            return True

        def _check_inf_per_device(self, optimizer):
            return {torch.device("cpu"): torch.tensor([0.0])}

        def _get_scale_async(self):
            return torch.tensor([8.0])

    params[0].grad = torch.full((4,), 8.0)
    optimizer.step(grad_scaler=Scaler())
    assert torch.allclose(optimizer.state[params[0]]["exp_avg"], torch.full((4,), 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_own_masters_do_not_lose_small_updates(dtype):
    """An update of a thousandth of a unit of the type, a thousand times."""
    for make in (
        lambda p: fused.FusedAdam(p, lr=1e-6, capturable=True, master_weights=True),
        lambda p: fused.FusedMixedPrecisionLamb(p, lr=1e-6, reduced_precision_dtype=dtype, weight_decay=0.0),
    ):
        p = nn.Parameter(torch.ones(4, dtype=dtype))
        optimizer = make([p])
        for _ in range(2000):
            p.grad = torch.ones_like(p)
            optimizer.step()
        master = optimizer.state[p]["master_param"]
        assert torch.allclose(master, torch.full((4,), 1 - 2e-3), atol=2e-5)
        assert torch.equal(p.detach(), master.to(dtype))
        if isinstance(optimizer, fused.FusedAdam):
            assert optimizer.param_groups_master[0]["params"][0] is master


def test_mixed_precision_lamb_is_lamb_on_masters():
    params = [nn.Parameter(v) for v in values(torch.float16)]
    optimizer = run(lambda p: fused.FusedMixedPrecisionLamb(p, lr=LR, step=3), params)
    assert int(optimizer.param_groups[0]["step"]) == 3 + STEPS and torch.is_tensor(optimizer.param_groups[0]["lr"])
    plain = [nn.Parameter(v.float()) for v in values(torch.float16)]
    peer = fused.FusedLAMB(plain, lr=float(torch.tensor(LR)))
    peer.param_groups[0]["step"] = 3
    for step in range(STEPS):
        for p, g in zip(plain, gradient(step, params), strict=True):
            p.grad = g.float()
        peer.step()
    for p, master in zip(params, plain, strict=True):
        assert torch.equal(optimizer.state[p]["master_param"], master.detach())
        assert torch.equal(p.detach(), master.detach().half())


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for the CPU")
def test_a_step_that_skips_leaves_gradients_as_they_are():
    param = nn.Parameter(torch.ones(2))
    optimizer = fused.FusedAdam([param], capturable=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    param.grad = torch.tensor([8.0, float("inf")])
    scaler.step(optimizer)
    assert param.grad.tolist() == [8.0, float("inf")] and param.tolist() == [1.0, 1.0]
