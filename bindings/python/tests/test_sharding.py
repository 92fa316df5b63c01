# SPDX-License-Identifier: Apache-2.0
"""Models and optimizers that are cut up between ranks: all of them skip, or none, whoever saw the overflow."""

import pytest
import torch
import torch.distributed as dist
from levels import WITH_MASTERS
from libamp.torch import amp
from libamp.torch.amp import sharding
from ranks import on_ranks
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

fsdp = pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP")
on_cpu = pytest.mark.skipif(torch.__version__.startswith("2.0"), reason="torch 2.0 has FSDP on CUDA alone")
# fully_shard of 2.6 runs on CUDA alone, and with gloo of 2.7 and 2.8 gradients are added that should be averaged
FULLY_SHARDS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
WAYS = ["fsdp after", "fsdp before", "flat parameters"] + ["fully_shard"] * FULLY_SHARDS
fully_shards = pytest.mark.skipif(not FULLY_SHARDS, reason="fully_shard of this torch does not average on CPUs")
CPU = torch.device("cpu")


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _wrap(model, orig=True):
    return fsdp.FullyShardedDataParallel(model, use_orig_params=orig, device_id=CPU)


def _start(way, level, **settings):
    """The model as it is called, and its optimizer. What was there before is over."""
    amp.shutdown()
    settings = {"opt_level": level, "verbosity": 0, "loss_scale": "dynamic"} | settings
    model = _net()
    if way in ("fsdp before", "flat parameters"):
        model = _wrap(model, way == "fsdp before")
    elif way == "fully_shard":
        for layer in (model[0], model[2], model):
            fsdp.fully_shard(layer)
    model, optimizer = amp.initialize(model, torch.optim.Adam(model.parameters(), lr=0.05), **settings)
    if way == "fsdp after":
        model = _wrap(model)
    elif way == "ddp":
        model = DistributedDataParallel(model)
    return model, optimizer


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _spoil(optimizer):
    """The last element of this rank's own gradients."""
    grads = [
        _local(param.grad) for group in optimizer.param_groups for param in group["params"] if param.grad is not None
    ]
    [grad for grad in grads if grad.numel()][-1].view(-1)[-1] = float("inf")


def _train(rank, model, optimizer, spoilt, iterations=4):
    """(did it step, the scale) of each iteration. spoilt: {iteration: ranks whose gradients overflow}."""
    told = []
    for i in range(iterations):
        torch.manual_seed(100 * i + rank)
        loss = model(torch.randn(4, 8)).float().pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            if rank in spoilt.get(i, ()):
                _spoil(optimizer)
        optimizer.step()
        told.append((amp.stepped(optimizer), amp.state_dict()["loss_scaler0"]["loss_scale"]))
    return told


def _outputs(model):
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 24).view(3, 8)).float()


EXPECTED = [(True, 2.0**16), (False, 2.0**15), (True, 2.0**15), (False, 2.0**14)]


def _shard(rank, world, way, level):
    model, optimizer = _start(way, level)
    told, out = _train(rank, model, optimizer, {1: [1], 3: [0]}), _outputs(model)
    whole, optimizer = _start("ddp", level)
    assert _train(rank, whole, optimizer, {1: [0, 1], 3: [0, 1]}) == EXPECTED
    return told, torch.equal(out, _outputs(whole))


@on_cpu
@pytest.mark.parametrize(("way", "level"), [*((way, "O1") for way in WAYS), (WAYS[0], "O4"), (WAYS[-1], "O0")])
def test_ranks_of_a_sharded_model_skip_together(way, level):
    """With the weights of DistributedDataParallel: halves of powers of two and sums of two numbers are exact."""
    assert on_ranks(_shard, way, level) == [(EXPECTED, True)] * 2


# ---- a script with a scale_loss of its own ----


def _by_hand(rank, world, way):
    """The overflows are those of rank 0, which has no elements of some parameters."""
    model, optimizer = _start(way, "O1")
    scaler, told = amp._amp_state.loss_scalers[0], []
    for i in range(3):
        loss = model(torch.ones(4, 8)).float().pow(2).mean()
        optimizer.zero_grad()
        optimizer._prepare_amp_backward()
        (loss * scaler.loss_scale()).backward()
        if i == 0 and rank == 0:
            _spoil(optimizer)
        optimizer._post_amp_backward(scaler)
        if i == 1 and rank == 0:
            scaler._has_overflow = True
        told.append((scaler.update_scale(), scaler.loss_scale()))
        scaler.clear_overflow_state()
    return told


@on_cpu
@pytest.mark.parametrize("way", WAYS[-1:] + WAYS[:1])
def test_halves_by_hand_skip_together(way):
    assert on_ranks(_by_hand, way) == [[(True, 2.0**15), (True, 2.0**14), (False, 2.0**14)]] * 2


@pytest.mark.parametrize(("backend", "device", "wire"), [
    ("gloo", "cuda:1", "cpu"), ("gloo", "cpu", "cpu"), ("nccl", "cuda:1", "cuda:1"), ("nccl", "cpu", "cuda"),
    ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
])
def test_flags_are_sent_from_where_the_backend_takes_them(backend, device, wire):
    assert sharding.wire_device(backend, torch.device(device)) == torch.device(wire)


# ---- groups that the user names ----


def _named(rank, world):
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    settings = (True, groups[rank // 2], False, None)  # None: nothing is sharded
    return [_train(rank, *_start("none", "O1", process_group=group), {1: [1]}, 2) for group in settings]


def test_a_named_group_agrees_and_nobody_else_is_asked():
    skips, steps = EXPECTED[:2], [EXPECTED[0]] * 2
    assert on_ranks(_named, world=3) == [[skips, skips, steps, steps], [skips] * 4, [skips, steps, steps, steps]]


def _raises_on_one(rank, world):
    model, optimizer = _start("none", "O1", process_group=True)
    try:
        with amp.scale_loss(model(torch.ones(2, 8)).float().sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
            if rank == 0:
                raise ArithmeticError("in the block")
    except ArithmeticError:
        assert rank == 0
    optimizer.step()
    told = amp.stepped(optimizer), amp.state_dict()["loss_scaler0"]["loss_scale"]
    model, optimizer = _start("fsdp after", "O1")
    _train(rank, model, optimizer, {}, 1)
    if rank == 0:  # the other one is not in a bracket: who asked it would wait for ever
        with pytest.raises(ArithmeticError), amp.scale_loss(torch.ones(()), optimizer):
            raise ArithmeticError("in the block")
    return told


@on_cpu
def test_a_rank_whose_block_raises_tells_a_named_group_alone():
    """Backward of a sharded model talks between ranks itself: an error in it is the end, and must be seen."""
    assert on_ranks(_raises_on_one) == [(False, 2.0**16)] * 2


# ---- ZeRO ----


def _zero(rank, world):
    model = _net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.05)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    return _train(0, model, optimizer, {1: [0], 3: [0]} if rank else {}), _outputs(model)


def test_ranks_of_a_sharded_optimizer_skip_together():
    (told, out), (other, same) = on_ranks(_zero)
    assert told == other == EXPECTED
    assert torch.equal(out, same)


# ---- what is refused ----


def _refusal(rank, way, level):
    with pytest.raises(RuntimeError) as error:
        if way == "zero":
            model = _net()
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=1.0)
            amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        model, optimizer = _start(way, level)
        if way == "fully_shard after":
            fsdp.fully_shard(model)
        _train(rank, model, optimizer, {}, 1)
    return str(error.value)


def _refused(rank, world, cases):
    return [_refusal(rank, way, level) for way, level in cases]


REFUSED = {
    ("fsdp before", "O2"): "opt_level O1 or O4",
    ("flat parameters", "O3"): "opt_level O1 or O4",
    ("fully_shard after", "O1"): "before the optimizer is made",
    ("zero", "O2"): "ZeroRedundancyOptimizer",
    ("fsdp after", "O2"): "sharded after amp.initialize",  # the last: what FSDP has cut amp cannot put back
}


@on_cpu
def test_what_cannot_be_sharded_is_refused_in_words():
    cases = [case for case in REFUSED if "fully_shard" in WAYS or "fully_shard" not in case[0]]
    for messages in on_ranks(_refused, cases):
        for case, message in zip(cases, messages, strict=True):
            assert REFUSED[case] in message


# ---- fully_shard at the levels with 16-bit models ----


def _on_two_ranks(check):
    """What each of two ranks found."""
    import fsdp2

    return on_ranks(getattr(fsdp2, check))


@fully_shards
@pytest.mark.parametrize("check", ["same_batch", "other_batches", "types", "refusals", "tensor_parallel"])
def test_fully_shard_trains_as_one_rank(check):
    for told in _on_two_ranks(check):
        assert told and {name: value for name, value in told.items() if value not in (True, (True, True))} == {}


@fully_shards
def test_ranks_of_fully_shard_skip_together():
    scales = [(True, 1024.0), (False, 512.0), (True, 512.0), (False, 256.0)]
    assert _on_two_ranks("overflow") == [dict.fromkeys(WITH_MASTERS, scales)] * 2
    assert _on_two_ranks("replicas") == [[True, False]] * 2
    assert _on_two_ranks("two_models") == [([True, False], True, [1024.0, 512.0])] * 2


@fully_shards
def test_blocks_whose_gradients_fully_shard_keeps_are_delayed():
    assert _on_two_ranks("accumulation") == [(True, True)] * 2


@fully_shards
def test_a_policy_keeps_batch_norms():
    assert _on_two_ranks("norms") == [True] * 2


@fully_shards
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_distributed_checkpoint_is_resumed_by_another_number_of_ranks(tmp_path, before, after):
    """Of one batch on all ranks the losses are equal to the bit, however many there are."""
    import fsdp2

    for level in WITH_MASTERS:
        told = on_ranks(fsdp2.save, tmp_path / level, level, world=before)
        assert on_ranks(fsdp2.resume, tmp_path / level, level, world=after) == [told[0]] * after


# ---- shards without masters ----


@fully_shards
@pytest.mark.parametrize("check", ["equal_bytes", "refusals"])
def test_shards_without_masters_have_the_bytes_of_the_whole(check):
    import fsdp2_stochastic

    for told in on_ranks(getattr(fsdp2_stochastic, check)):
        assert told and {name: value for name, value in told.items() if value is not True} == {}


@fully_shards
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_shards_without_masters_are_resumed_by_another_number_of_ranks(tmp_path, before, after):
    """The count of steps, weights and moments in 8 bits."""
    import fsdp2_stochastic

    told = on_ranks(fsdp2_stochastic.save, tmp_path, world=before)
    assert told[0][2] == 7 and on_ranks(fsdp2_stochastic.resume, tmp_path, world=after) == [told[0]] * after
