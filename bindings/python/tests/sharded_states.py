# SPDX-License-Identifier: Apache-2.0
"""What ranks do with the sharded optimizers: checkpoints, groups, LAMB, and all checks in a row."""

import io
import warnings

import pytest
import torch
import torch.distributed as dist
from libamp.torch.contrib.optimizers.distributed_fused_adam import DistributedFusedAdam
from libamp.torch.contrib.optimizers.distributed_fused_lamb import DistributedFusedLAMB
from libamp.torch.optimizers import FusedAdam, FusedLAMB
from sharded import (
    ADAM,
    TINY,
    Reference,
    accumulation,
    adam,
    amp_refusals,
    backward,
    beside_amp,
    failed_backward,
    grad_scaler,
    half_state,
    make_grads,
    make_groups,
    make_params,
    norms,
    overlap,
    pairs,
    reduce_scatter,
    unused,
)
from torch import nn

# ---- checkpoints ----


def _state(optimizer, **named):
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(**named), stream)
    return torch.load(io.BytesIO(stream.getvalue()), weights_only=True)


def _go_on(params, optimizer, rank):
    for step in range(5, 7):
        backward(params, make_grads(rank, step, params))
        optimizer.step()
    return [param.detach() for param in params]


def _resumed(kind, settings, group, state, rank, dtype):
    params = make_params(dtype, seed=9)
    optimizer = kind(make_groups(params), lr=7.0, **settings, **({"process_group": group} if group else {}))
    optimizer.load_state_dict(state)
    return _go_on(params, optimizer, rank)


def checkpoints(rank, world):
    """Both formats, the default one also in other buckets, of masters and of remainders."""
    found = []
    for kind, dtype, settings in (
        (DistributedFusedAdam, torch.float32, {}),
        (DistributedFusedAdam, torch.bfloat16, ADAM["remainders"]),
        (DistributedFusedLAMB, torch.float32, {}),
    ):
        settings = {name: value for name, value in settings.items() if name != "params"}
        params = make_params(dtype)
        optimizer = kind(make_groups(params), lr=0.01, **settings)
        for step in range(3):
            backward(params, make_grads(rank, step, params))
            optimizer.step()
        whole, own = _state(optimizer), _state(optimizer, state_dict_format=1, gather_on_root=False)
        gathered = [_state(optimizer, state_dict_format=1)]
        assert (gathered[0] is not None) == (rank == 0)
        dist.broadcast_object_list(gathered, 0)
        expected = _go_on(params, optimizer, rank)
        other = {**settings, "bucket_cap_mb": TINY} if kind is DistributedFusedAdam else settings
        for state, how in ((whole, settings), (whole, other), (own, settings), (gathered[0], settings)):
            values = _resumed(kind, how, None, state, rank, dtype)
            found.append(all(torch.equal(p, q) for p, q in zip(values, expected, strict=True)))
        with pytest.raises(RuntimeError, match="result of state_dict"):
            optimizer.load_state_dict({"gathered_states": [torch.zeros(1)] * (world + 1), "format": 1})
        sizes = sum(bucket["exp_avg"].numel() for bucket in own["buckets"])
    return found, sizes, whole["format"]


def other_ranks(rank, world):
    """Saved by two ranks, loaded by all and by one; gradients are the same everywhere, so that means are."""
    two, one = dist.new_group([0, 1]), dist.new_group([0])
    told = [None]
    if rank < 2:
        params = make_params()
        optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, process_group=two)
        for step in range(3):
            backward(params, make_grads(0, step, params))
            optimizer.step()
        told = [(optimizer.state_dict(), optimizer.state_dict(state_dict_format=1))]
        expected = [_go_on(params, optimizer, 0)]
    dist.broadcast_object_list(told, 0)
    whole, shards = told[0]
    if rank >= 2:
        expected = [None]
    dist.broadcast_object_list(expected, 0)
    found = []
    for group in (None, one):
        if group is None or rank == 0:
            values = _resumed(DistributedFusedAdam, {}, group, whole, 0, torch.float32)
            found.append(all(torch.allclose(p, q, rtol=1e-6, atol=0) for p, q in zip(values, expected[0], strict=True)))
    with pytest.raises(RuntimeError, match="Any number of ranks can load"):
        _resumed(DistributedFusedAdam, {}, None, shards, 0, torch.float32)
    return found


# ---- groups, and what is refused ----


def redundant(rank, world):
    """A grid of one rank a shard: every rank has all of the state."""
    alone = [dist.new_group([each]) for each in range(world)][rank]
    params = make_params()
    optimizer = DistributedFusedAdam(
        make_groups(params), lr=0.01, distributed_process_group=alone, redundant_process_group=dist.group.WORLD
    )
    reference = Reference(FusedAdam, params)
    for step in range(2):
        backward(params, make_grads(rank, step, params))
        optimizer.step()
        reference.step(world, step)
    with pytest.raises(RuntimeError, match="are not"):
        DistributedFusedAdam(make_params(), redundant_process_group=dist.group.WORLD)
    return all(torch.allclose(p, q, rtol=1e-6) for p, q in pairs(params, reference))


def refusals(rank, world):
    """All ranks raise, whichever has the fault."""
    words = []
    for fault in ("more", "integers", "holes"):
        params = make_params()
        if rank == world - 1:
            extra = {
                "more": nn.Parameter(torch.ones(3)),
                "integers": torch.ones(3, dtype=torch.int64),
                "holes": nn.Parameter(torch.ones(4, 4)[:, ::2]),
            }
            params.append(extra[fault])
        elif fault != "more":
            params.append(nn.Parameter(torch.ones(3)))
        with pytest.raises(RuntimeError) as error:
            DistributedFusedAdam(params)
        words.append(str(error.value))
    dist.barrier()
    return words


# ---- LAMB ----

LAMB = {
    "default": {},
    "decay": {"weight_decay": 0.01},
    "clipped": {"max_grad_norm": 1.0, "weight_decay": 0.01, "eps": 1e-6},
    "nvlamb, l2": {"use_nvlamb": True, "adam_w_mode": False, "weight_decay": 0.01},
    "not averaged": {"grad_averaging": False, "bias_correction": False, "weight_decay": 0.01, "eps": 0.1},
}


def lamb(rank, world):
    """FusedLAMB's parameters, within the rounding of FP32."""
    for settings in LAMB.values():
        params = make_params()
        optimizer = DistributedFusedLAMB(make_groups(params), lr=0.01, **settings)
        lambs = {"weight_decay": 0.0, "max_grad_norm": 0.0, "eps": 1e-8}
        reference = Reference(FusedLAMB, params, **{**lambs, **settings})
        for step in range(4):
            optimizer.set_is_accumulation_step(True)
            backward(params, make_grads(rank, 2 * step, params))
            optimizer.set_is_accumulation_step(False)
            backward(params, make_grads(rank, 2 * step + 1, params))
            optimizer.step()
            reference.step(world, step, micro=2)
        for param, other in pairs(params, reference):
            torch.testing.assert_close(param, other, rtol=2e-6, atol=1e-6)
    return True


def lamb_loop(rank, world):
    """NVIDIA's loop: (does the loss fall, what an overflow of one rank changes)."""
    if not hasattr(torch.amp, "GradScaler"):
        return None
    warnings.simplefilter("ignore", FutureWarning)
    scaler = torch.amp.GradScaler("cpu", init_scale=100.0)
    linear = nn.Linear(16, 16, bias=False)
    nn.init.ones_(linear.weight)
    optimizer = DistributedFusedLAMB(
        linear.parameters(), lr=0.1, betas=(0.9, 0.9), eps=1e-6, max_grad_norm=1.0, weight_decay=0.01,
        dwu_group_size=1, dwu_num_blocks=2, dwu_num_chunks=2, dwu_num_ar_pg=1,
    )  # fmt: skip
    torch.manual_seed(rank)
    x, y = torch.randn(64, 16), torch.randn(64, 16)
    losses = []
    for _ in range(5):
        loss = (linear(x) - y).pow(2).mean()
        optimizer._lazy_init_stage1()
        scaler.scale(loss).backward()
        optimizer._lazy_init_stage2()
        optimizer._lr = torch.tensor(0.1)
        optimizer.complete_reductions()
        optimizer.set_global_scale(scaler._get_scale_async())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    before = linear.weight.clone()
    (linear(x) * (float("inf") if rank == 0 else 1.0)).sum().backward()
    optimizer.step()
    mine = linear.weight.detach().clone()
    dist.broadcast(mine, 0)
    return losses == sorted(losses, reverse=True), torch.equal(before, linear.weight), torch.equal(mine, linear.weight)


# ---- all of them ----

CHECKS = [adam, reduce_scatter, half_state, accumulation, unused, norms, grad_scaler, beside_amp, checkpoints, lamb]
BEHIND_ONE = [overlap, failed_backward, redundant, refusals, lamb_loop]


def every_check(rank, world):
    chosen = CHECKS + (BEHIND_ONE if world == 2 else []) + ([other_ranks] if world == 3 else [])
    return {check.__name__: check(rank, world) for check in chosen + ([amp_refusals] if world == 1 else [])}
