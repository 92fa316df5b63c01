# SPDX-License-Identifier: Apache-2.0
"""Masters and what writes parameters between initialize and the first backward: a broadcast of data parallel wrappers,
first of all. Every rank then has the same masters, as Apex's, which were made later, had."""

import extras
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from levels import WITH_MASTERS  # noqa: E402
from libamp.torch import amp, parallel  # noqa: E402
from libamp.torch.optimizers import FusedAdam  # noqa: E402
from ranks import on_ranks  # noqa: E402
from torch import nn  # noqa: E402


def start(level="O2", seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), opt_level=level, verbosity=0
    )


def step(model, optimizer, x):
    optimizer.zero_grad()
    with amp.scale_loss(model(x).float().square().mean(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()


def wrap_apex(model):
    return parallel.DistributedDataParallel(model)


def wrap_torch(model):
    return nn.parallel.DistributedDataParallel(model)


def wrap_reducer(model):
    parallel.Reducer(model)
    return model


def wrap_state_dict(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    return model


def _masters(rank, world, wrap, level):
    model, optimizer = start(level, seed=rank)  # every rank draws its own weights
    wrapped = wrap(model)
    x = torch.ones(3, 4) * (rank + 1)
    before = [p.detach().clone() for p in model.parameters()]
    if wrap in (wrap_apex, wrap_torch):
        step(wrapped, optimizer, x)
    else:  # no gradients are exchanged: equal ones leave equal masters
        step(model, optimizer, torch.ones(3, 4))
    masters = [p.detach().clone() for p in amp.master_params(optimizer)]
    rounded = all(torch.equal(p, m.to(p.dtype)) for p, m in zip(model.parameters(), masters, strict=True))
    moved = any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    amp.shutdown()
    return masters, rounded, moved


@pytest.mark.parametrize("level", WITH_MASTERS)
@pytest.mark.parametrize("wrap", (wrap_apex, wrap_torch, wrap_reducer, wrap_state_dict))
def test_masters_are_the_same_on_every_rank(wrap, level):
    if wrap is wrap_torch and level == "O5" and torch.__version__.startswith("2.0."):
        pytest.skip("this torch's gloo has no bfloat16, and its DDP sends parameters as they are")
    (first, *states), (second, *others) = on_ranks(_masters, wrap, level)
    assert states == others == [True, True]
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_what_is_written_through_data_before_the_first_backward_counts():
    model, optimizer = start()
    values = [torch.randn(p.shape) for p in model.parameters()]
    for param, value in zip(model.parameters(), values, strict=True):
        param.data.copy_(value)
    peer, _ = start(seed=1)
    with torch.no_grad():
        for param, value in zip(peer.parameters(), values, strict=True):
            param.copy_(value)
    step(model, optimizer, torch.zeros(1, 4))
    step(model, optimizer, torch.zeros(1, 4))
    assert torch.equal(model[0].weight, peer[0].weight)  # zeros in: no gradient
    assert torch.equal(next(amp.master_params(optimizer)), values[0].half().float())


def test_masters_that_nobody_touched_keep_the_bits_that_fp16_has_not():
    torch.manual_seed(0)
    wanted = nn.Linear(4, 8).weight.detach().clone()
    model, optimizer = start()
    step(model, optimizer, torch.zeros(1, 4))
    assert torch.equal(next(amp.master_params(optimizer)), wanted)
    assert not torch.equal(wanted, wanted.half().float())


def test_a_model_that_is_loaded_keeps_its_bits_and_takes_edits_after_it():
    model, optimizer = start()
    saved = {name: torch.randn(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(saved)
    with torch.no_grad():
        model[2].bias.data.fill_(0.5)
    step(model, optimizer, torch.zeros(1, 4))
    masters = dict(zip(saved, amp.master_params(optimizer), strict=True))
    assert torch.equal(masters["0.weight"], saved["0.weight"])
    assert torch.equal(model[0].weight, saved["0.weight"].half())
    assert not torch.equal(masters["2.bias"], saved["2.bias"])
    assert torch.equal(model[2].bias, masters["2.bias"].half())


def test_masters_written_before_the_first_forward_are_what_it_computes_with():
    model, optimizer = start()
    with torch.no_grad():
        for master in amp.master_params(optimizer):
            master.fill_(0.25)
    assert model(torch.ones(1, 4)).tolist() == [[0.25 + 8 * 0.25 * 1.25] * 2]
    assert all(bool((p == 0.25).all()) for p in model.parameters())
    with amp.scale_loss(model(torch.ones(1, 4)).sum(), optimizer) as scaled:
        scaled.backward()
    assert all(bool((m == 0.25).all()) for m in amp.master_params(optimizer))


def _compressed(rank, world):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level="O4", verbosity=0)
    model = nn.parallel.DistributedDataParallel(model)
    handle = amp.compress_activations(model, 4)
    torch.manual_seed(rank)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64)).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return [param.detach().clone() for param in model.parameters()], sorted(handle.store.counts), handle.store.seed()


@extras.needs("activations")
def test_compressed_activations():
    """Each rounds its own way, and all have the same parameters after the average."""
    (first, kept, seed), (second, _, other) = on_ranks(_compressed)
    assert all(map(torch.equal, first, second)) and "4 bits" in kept and seed != other


# ---- state that is rounded at random ----


def _random_state(rank, world, wrap, bits):
    """A training without masters on every rank's own data: weights, and the optimizer's state as bytes. The first rank
    overflows in the second step, which all skip."""
    torch.manual_seed(5 + rank)
    model = nn.Sequential(nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 2))
    optimizer = FusedAdam(model.parameters(), lr=1e-3, state_bits=bits)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O5", verbosity=0, master_weights="stochastic", loss_scale="dynamic"
    )
    wrapped = wrap(model)
    for number in range(4):
        torch.manual_seed(10 * number + rank)
        x = torch.randn(8, 64) * (float("inf") if number == 1 and rank == 0 else 1.0)
        step(wrapped, optimizer, x)
    steps = optimizer.param_groups[0]["step"]
    state = [tensor for part in optimizer.state_dict()["state"].values() for tensor in part.values()]
    large = optimizer.state[next(model.parameters())]
    amp.shutdown()
    return [param.detach() for param in model.parameters()], state, steps, large["exp_avg"].dtype


@pytest.mark.parametrize("bits", (32, 8))
@pytest.mark.parametrize("wrap", (wrap_apex, wrap_torch))
def test_random_rounding_is_the_same_on_every_rank(wrap, bits):
    if wrap is wrap_torch and torch.__version__.startswith("2.0."):
        pytest.skip("this torch's gloo has no bfloat16, and its DDP sends parameters as they are")
    first, second = on_ranks(_random_state, wrap, bits)
    assert first[2] == second[2] == 3
    assert first[3] is (torch.int8 if bits == 8 else torch.float32)
    for a, b in zip(first[0] + first[1], second[0] + second[1], strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
