# SPDX-License-Identifier: Apache-2.0
"""What two ranks do with shards in bfloat16 that have no masters: master_weights="stochastic" with fully_shard. Both
have the same batch, as in fsdp2.py, so shards have the bytes of the whole."""

import functools

import fsdp2
import torch
from fsdp2 import ADAM, Net, start, train, values_of
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdagrad, FusedAdam, FusedSGD
from torch import nn
from torch.distributed import fsdp
from torch.distributed.tensor import Shard

ADAM8 = functools.partial(FusedAdam, lr=0.01, state_bits=8)
RANDOM = {
    "FusedAdam": (ADAM8.func, {"lr": 0.01}), "8 bits": (ADAM8, {}), "FusedAdagrad": (FusedAdagrad, {"lr": 0.01}),
    "FusedSGD": (FusedSGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.1}),
}


def begin(level="O5", sharded=True, optimizer=ADAM8, norm=False, width=128, **settings):
    """Of 4096 elements, whose moments may have 8 bits, are the weights of blocks."""
    model = Net(norm=norm, width=width)
    if sharded:
        model.bfloat16()
        if norm:
            fsdp.fully_shard(model.norm.float(), mp_policy=amp.fsdp_policy("O5", model.norm))
    return start(level, sharded, model, optimizer, **{"master_weights": "stochastic"} | settings)


def equal_bytes(rank, world):
    """Shards write the bytes of the whole, with an overflow on one rank."""
    told = {}
    for name, (kind, given) in RANDOM.items():
        made = []
        for sharded in (False, True):
            model, optimizer = begin("O5", sharded, functools.partial(kind, **given), norm=name == "FusedAdam")
            train(model, optimizer, range(4), spoil=[2] if rank == 0 or not sharded else [])
            made.append(values_of(optimizer))
            told[f"{name}, types"] = {param.dtype for param in optimizer.param_groups[0]["params"]} == (
                {torch.bfloat16, torch.float32} if name == "FusedAdam" else {torch.bfloat16}
            ) and amp.memory().masters == 0
            told[f"{name}, steps"] = optimizer.param_groups[0]["step"] == 3
        told[name] = len(made[0]) == len(made[1]) and all(
            x.dtype == y.dtype and torch.equal(x, y[: len(x)]) and not y[len(x) :].any()
            for x, y in zip(*made, strict=True)
        )
    return told


def _by_columns():
    amp.shutdown()
    model = nn.Linear(8, 8).bfloat16()
    fsdp.fully_shard(model, mp_policy=amp.fsdp_policy("O5"), shard_placement_fn=lambda param: Shard(param.ndim - 1))
    amp.initialize(model, FusedAdam(model.parameters()), opt_level="O5", verbosity=0, master_weights="stochastic")


def refusals(rank, world):
    """In words, on every rank."""
    random = {"master_weights": "stochastic"}
    normed = functools.partial(start, "O5", model=Net(norm=True).bfloat16(), optimizer=ADAM8, **random)
    told = {
        "FP32": ("call model.to(torch.bfloat16) before fully_shard", functools.partial(start, "O5", **random)),
        "a batch norm": ("call norm.float()", normed),
        "columns": ("along dimension 0", _by_columns),
        "blocks": ("each needs a multiple of 64 rows", lambda: train(*begin(width=132), [0])),
        "torch's": ("does not round at random", functools.partial(begin, optimizer=ADAM)),
        "masters": ("without .half(), .bfloat16()", functools.partial(begin, master_weights=True)),
    }
    return {name: words in (message := fsdp2._message(make)) or message for name, (words, make) in told.items()}


def save(rank, world, folder):
    return fsdp2.save(rank, world, folder, "O5", begin)


def resume(rank, world, folder):
    return fsdp2.resume(rank, world, folder, "O5", begin)
