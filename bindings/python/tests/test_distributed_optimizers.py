# SPDX-License-Identifier: Apache-2.0
"""
DistributedFusedAdam and DistributedFusedLAMB are FusedAdam and FusedLAMB on the mean of all ranks' gradients.

A world of ranks starts once and runs all checks of sharded.py and sharded_states.py in a row; what each of them found
is what the tests look at.
"""

import functools

import pytest
import sharded
import sharded_states
import torch
from libamp.torch.contrib.optimizers import _buckets
from libamp.torch.contrib.optimizers.distributed_fused_adam import DistributedFusedAdam
from libamp.torch.contrib.optimizers.distributed_fused_lamb import DistributedFusedLAMB
from ranks import on_ranks


@functools.lru_cache
def _found(world):
    return on_ranks(sharded_states.every_check, world=world)


def _each(world, check):
    return [found[check.__name__] for found in _found(world)]


WORLDS = pytest.mark.parametrize("world", [1, 2, 3])


@WORLDS
@pytest.mark.parametrize("name", sharded.ADAM)
def test_adam_is_fused_adam_on_the_mean_to_the_bit(world, name):
    assert [found[name] for found in _each(world, sharded.adam)] == [([], True)] * world


@WORLDS
def test_backends_that_reduce_and_scatter_by_themselves(world):
    assert _each(world, sharded.reduce_scatter) == [([], True)] * world


@WORLDS
def test_state_in_16_bits(world):
    assert _each(world, sharded.half_state) == [{torch.bfloat16}] * world


@WORLDS
def test_several_backwards_before_a_step(world):
    assert _each(world, sharded.accumulation) == [[True] * 4] * world


@WORLDS
def test_ranks_may_use_different_parameters(world):
    assert _each(world, sharded.unused) == [(True, True)] * world


def test_buckets_are_sent_while_backward_computes():
    assert _each(2, sharded.overlap) == [(True, True, True)] * 2


@WORLDS
def test_norms_are_those_of_the_mean(world):
    assert _each(world, sharded.norms) == [True] * world


def test_a_backward_that_failed_leaves_no_trace():
    assert _each(2, sharded.failed_backward) == [True] * 2


@WORLDS
def test_grad_scaler_skips_on_all_ranks(world):
    for found in _each(world, sharded.grad_scaler):
        if found is None:
            pytest.skip("this torch scales on CUDA alone")
        assert found == ([True, False, True, False, True], [4.0, 2.0, 2.0, 1.0, 1.0], True)


@WORLDS
def test_beside_amp_it_is_fused_adam_on_the_mean(world):
    assert _each(world, sharded.beside_amp) == [[(True, True, True)] * 2] * world


def test_amps_masters_are_refused_in_words():
    ((words, types),) = _each(1, sharded.amp_refusals)
    assert all("DistributedFusedAdam" in text and "O1 or O4" in text for text in words)
    assert types == (torch.bfloat16, torch.float32)


@WORLDS
def test_checkpoints_resume_to_the_bit(world):
    elements = sum(param.numel() for param in sharded.make_params())
    for found, sizes, kind in _each(world, sharded_states.checkpoints):
        assert found == [True] * 12 and kind == 2
        assert sizes <= elements / world + 64


def test_checkpoints_of_two_ranks_are_loaded_by_three_and_by_one():
    assert _each(3, sharded_states.other_ranks) == [[True, True], [True], [True]]


def test_a_grid_of_shards_and_copies():
    assert _each(2, sharded_states.redundant) == [True] * 2


def test_all_ranks_hear_what_is_wrong_on_one():
    for words in _each(2, sharded_states.refusals):
        assert all("on rank 1" in text for text in words)
        assert [part in text for part, text in zip(("differ", "int64", "holes"), words, strict=True)] == [True] * 3


@WORLDS
def test_lamb_is_fused_lamb_on_the_mean(world):
    assert _each(world, sharded_states.lamb) == [True] * world


def test_lamb_in_nvidias_loop():
    for found in _each(2, sharded_states.lamb_loop):
        if found is None:
            pytest.skip("this torch scales on CUDA alone")
        assert found == (True, True, True)


@pytest.mark.parametrize(("settings", "words"), [
    ({"amsgrad": True}, "AMSGrad"),
    ({"with_scaled_states": True}, "with_scaled_states"),
    ({"nccl_ub": True}, "nccl_ub"),
    ({"capturable": True}, "capturable"),
    ({"store_param_remainders": True}, "not both"),
    ({"store_param_remainders": True, "store_params": False}, "bfloat16"),
    ({}, "init_process_group"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused_in_words(settings, words):
    with pytest.raises(RuntimeError, match=words):
        DistributedFusedAdam(sharded.make_params(), **settings)


@pytest.mark.parametrize("settings", [{"clip_after_ar": False}, {"e5m2_allgather": True}, {"skip_allgather": True}])
def test_lambs_arguments_that_cannot_be_are_refused_in_words(settings):
    with pytest.raises(RuntimeError, match=next(iter(settings))):
        DistributedFusedLAMB(sharded.make_params(), **settings)


def test_types_that_cannot_be_are_refused_in_words():
    with pytest.raises(ValueError, match="float64"):
        DistributedFusedAdam(sharded.make_params(), dtype=torch.float64)


def test_remainders_are_the_bits_that_bfloat16_lacks():
    bits = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int64).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), torch.tensor([0.0, -0.0, 1.0, float("inf"), 1.00390625])])
    values = values[~values.isnan()]
    params, remainders = _buckets.split(values)
    assert torch.equal(_buckets.join(params, remainders).view(torch.int32), values.view(torch.int32))
    finite = values.abs() < 3e38
    assert ((params.float() - values)[finite].abs() <= (values.bfloat16().float() - values)[finite].abs()).all()
