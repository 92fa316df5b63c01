# SPDX-License-Identifier: Apache-2.0
"""What two ranks do with fully_shard and DTensors at the levels with 16-bit models.

If both ranks have the same batch, the mean of their gradients is exact, and each loss is that of one rank without
shards, to the last bit."""

import contextlib
import functools
import io

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from levels import WITH_MASTERS
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

STEPS = 20
ADAM = functools.partial(torch.optim.Adam, lr=0.01)
OVERRIDES = hasattr(fsdp.MixedPrecisionPolicy(), "param_dtype_override_fn")  # types of single parameters, torch 2.15


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


class Net(nn.Module):
    """Its last bias has one element, so that a rank has none of it."""

    def __init__(self, norm=False, recompute=False, frozen=False, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks = nn.Linear(8, width), nn.ModuleList([Block(width), Block(width)])
        self.last = nn.Linear(width, 1)
        if frozen:
            self.blocks.bfloat16().requires_grad_(False)
        self.norm = nn.BatchNorm1d(width) if norm else None
        self.recompute = recompute

    def forward(self, x):
        x = self.first(x)
        x = x if self.norm is None else self.norm(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.last(x)


def shard(model, policy):
    """policy: of a module, for fully_shard."""
    if model.norm is not None and not OVERRIDES:
        fsdp.fully_shard(model.norm, mp_policy=policy(model.norm))
    for module in (*model.blocks, model.last, model):
        fsdp.fully_shard(module, mp_policy=policy(module))
    return model


def start(level, sharded=True, model=None, optimizer=ADAM, **settings):
    """What was there before is over."""
    amp.shutdown()
    model = Net() if model is None else model
    if sharded:
        model = shard(model, functools.partial(amp.fsdp_policy, level))
    settings = {"loss_scale": "dynamic", "init_scale": 2.0**10, "verbosity": 0} | settings
    trained = [param for param in model.parameters() if param.requires_grad]
    return amp.initialize(model, optimizer(trained), opt_level=level, **settings)


def batch(step, rank=0, world=1):
    torch.manual_seed(100 + step)
    x = torch.randn(8, 8)[rank::world]
    return x, x.sum(1, keepdim=True)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def values_of(optimizer):
    """Weights and moments of all ranks, flat."""
    params = optimizer.param_groups[0]["params"]
    states = [optimizer.state[param] for param in params]  # whose order torch's load_state_dict changes
    moments = [state[name] for state in states for name in sorted(state) if isinstance(state[name], torch.Tensor)]
    tensors = [*(param.detach() for param in params), *moments]
    return [(each.full_tensor() if hasattr(each, "full_tensor") else each).reshape(-1) for each in tensors]


def train(model, optimizer, steps=range(STEPS), rank=0, world=1, spoil=(), clip=None):
    """The losses: means over ranks, if each has a part of the batch. spoil: steps in which this rank overflows."""
    losses = []
    for step in steps:
        x, y = batch(step, rank, world)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            if step in spoil:
                local(next(param for param in model.parameters() if local(param).numel()).grad).view(-1)[0] = torch.inf
        if clip:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), clip)
        optimizer.step()
        mean = loss.detach().clone()
        if world > 1:
            dist.all_reduce(mean)
        losses.append(mean.item() / world)
    return losses


# ---- losses ----


def same_batch(rank, world):
    """One rank's losses to the bit: with a batch norm, with recomputation, with torch's and libamp's optimizers."""
    cases = {
        "norm, torch's Adam": ({"norm": True}, ADAM),
        "recomputed, FusedAdam": ({"recompute": True}, functools.partial(FusedAdam, lr=0.01)),
    }
    equal = {}
    for level in WITH_MASTERS:
        for name, (net, optimizer) in cases.items():
            whole, parts = (
                train(*start(level, sharded, Net(**net), optimizer), range(4)) for sharded in (False, True)
            )
            equal[f"{level}, {name}"] = whole == parts and len(set(whole)) == 4
    whole, parts = (train(*start("O5", sharded, Net(frozen=True)), range(3)) for sharded in (False, True))
    return equal | {"frozen bf16 weights": whole == parts}


def other_batches(rank, world):
    """Largest difference from one rank's losses with the whole batch, beside what the level's rounding changes there:
    its difference from FP32."""
    sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    exact = train(*start("O0", False, optimizer=sgd), clip=1.0)
    told = {}
    for level in WITH_MASTERS:
        whole = train(*start(level, False, optimizer=sgd), clip=1.0)
        parts = train(*start(level, optimizer=sgd), rank=rank, world=world, clip=1.0)
        distances = [max(abs(a - b) for a, b in zip(x, whole, strict=True)) for x in (parts, exact)]
        told[level] = distances[0] <= 2 * distances[1], whole[-1] < whole[0] / 2
    return told


def _watch(module, name, seen):
    module.register_forward_hook(
        lambda module, args, out: seen.update({name: (module.weight.dtype, args[0].dtype, out.dtype)})
    )


def types(rank, world):
    """The shards are the masters and FP32, and modules get the level's types."""
    told = {}
    for level, dtype in zip(WITH_MASTERS, (torch.float16, torch.bfloat16), strict=True):
        model, optimizer = start(level, model=Net(norm=True))
        seen = {}
        _watch(model.first, "first", seen)
        _watch(model.norm, "norm", seen)
        _watch(model.blocks[0].first, "block", seen)
        out = model(batch(0)[0])
        amp.shutdown()  # the forward has left whole FP16 weights in the model, and another initialize takes the shards
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=2.0**10, verbosity=0)
        optimizer.register_step_pre_hook(lambda one, *_, seen=seen: seen.update(fused=one.param_groups[0]["fused"]))
        train(model, optimizer, [0])
        fused = seen.pop("fused") is True  # torch's own choice is three times slower
        model.reshard()
        low = (dtype,) * 3
        told[level] = fused and (
            seen == {"first": low, "block": low, "norm": (torch.float32, dtype, dtype)}
            and out.dtype is torch.float32
            and {param.dtype for param in model.parameters()} == {torch.float32}
            and {id(param) for param in amp.master_params(optimizer)} == {id(param) for param in model.parameters()}
            and optimizer._amp_stash.all_fp32_from_fp16_params == []
        )
    return told


# ---- overflows, accumulation ----


def overflow(rank, world):
    """The scale after each step, and whether it stepped: each rank has an overflow, the other one skips."""
    told = {}
    for level in WITH_MASTERS:
        model, optimizer = start(level)
        told[level] = []
        for step in range(4):
            train(model, optimizer, [step], rank, world, [2 * rank + 1])
            told[level].append((amp.stepped(optimizer), amp.state_dict()["loss_scaler0"]["loss_scale"]))
    return told


def replicas(rank, world):
    """Replicas of a model, one on each of two ranks, stay equal if the gradient of one is not finite."""
    amp.shutdown()
    model = Net()
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicas", "shards"))
    fsdp.fully_shard(model, mesh=mesh, mp_policy=amp.fsdp_policy("O2"))
    model, optimizer = amp.initialize(
        model, ADAM(model.parameters()), opt_level="O2", init_scale=2.0**10, verbosity=0
    )
    stepped = []
    for step in range(2):
        train(model, optimizer, [step], rank, world, [1] if rank else [])
        stepped.append(amp.stepped(optimizer))
    return stepped


def two_models(rank, world):
    """A policy and a value network, with a loss scale each, and a reference outside of initialize. Returns which of the
    two stepped, after an overflow of the second on one rank, whether gathered weights are the shards' rounded, and the
    scales."""
    amp.shutdown()
    models = [shard(Net(), functools.partial(amp.fsdp_policy, "O2")) for _ in range(3)]
    models, reference = models[:2], models[2]
    optimizers = [ADAM(model.parameters()) for model in models]
    models, optimizers = amp.initialize(
        models, optimizers, opt_level="O2", num_losses=2, init_scale=2.0**10, verbosity=0
    )
    x, y = batch(0, rank, world)
    exact = reference.first.weight.full_tensor().half()
    with torch.no_grad():
        y = y + reference(x.half()).float()
    for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        with amp.scale_loss((model(x) - y).pow(2).mean(), optimizer, loss_id=index) as scaled_loss:
            scaled_loss.backward()
            if index and rank:
                local(model.first.weight.grad).view(-1)[0] = torch.inf
        optimizer.step()
    scales = [state["loss_scale"] for state in amp.state_dict().values()]
    return [amp.stepped(optimizer) for optimizer in optimizers], torch.equal(reference.first.weight, exact), scales


def accumulate(rank, world, way, level="O2", **settings):
    """Two steps of two micro-batches; returns the shards' sum, and the scaler's count. way: "each" is reduced, "kept"
    by fully_shard, or that in "delayed" blocks."""
    model, optimizer = start(level, **settings)
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            x, y = batch(2 * step + micro, rank, world)
            if way != "inside":
                model.set_requires_gradient_sync(way == "each" or micro == 1)
            delay = way == "delayed" and micro == 0
            with amp.scale_loss((model(x) - y).pow(2).mean(), optimizer, delay_unscale=delay) as scaled_loss:
                if way == "inside":
                    model.set_requires_gradient_sync(False)
                scaled_loss.backward()
        optimizer.step()
    assert not amp.findings()
    total = sum(local(param).detach().double().abs().sum() for param in amp.master_params(optimizer))
    return float(total), amp.state_dict()["loss_scaler0"]["unskipped"]


def accumulation(rank, world):
    """Sums between ranks have another order: FP32's rounding of gradients, through two steps of Adam. Blocks whose
    gradients are kept are no brackets of the scaler, which has one scale for all of them."""
    each, kept, delayed = (accumulate(rank, world, way) for way in ("each", "kept", "delayed"))
    near = kept == delayed and abs(each[0] - kept[0]) < 1e-6 * each[0] and (each[1], kept[1]) == (4, 2)
    unscaled = accumulate(rank, world, "kept", "O5")
    message = _message(accumulate, rank, world, "inside")
    return near and unscaled[0] > 0, "before the block" in message


# ---- what is wrong ----


def _message(function, *args):
    try:
        function(*args)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def _policies(**settings):
    return lambda module: fsdp.MixedPrecisionPolicy(**settings)


def _refused(level, policy=None, model=None, wait=False, early=False, **settings):
    amp.shutdown()
    model = Net() if model is None else model
    optimizer = ADAM(model.parameters())
    if wait:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    shard(model, policy or functools.partial(amp.fsdp_policy, level))
    if not wait and not early:
        optimizer = ADAM(model.parameters())
    if not wait:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **settings)
    train(model, optimizer, [0])


def _after_forward():
    model = shard(Net(), functools.partial(amp.fsdp_policy, "O2"))
    model(batch(0)[0].half())
    amp.initialize(model, ADAM(model.parameters()), opt_level="O2", verbosity=0)


LOW, WIDE = torch.float16, torch.float32
REFUSED = {
    "no policy": (("O2", lambda module: fsdp.MixedPrecisionPolicy()), "no MixedPrecisionPolicy with a param_dtype"),
    "other type": (("O5", _policies(param_dtype=LOW, reduce_dtype=WIDE)), "O5 computes in bfloat16"),
    "other casts": (("O4", _policies(param_dtype=LOW, reduce_dtype=WIDE)), "O4 casts to bfloat16"),
    "sums": (("O2", _policies(param_dtype=LOW, reduce_dtype=LOW)), "reduce_dtype=torch.float32"),
    "output": (("O2", _policies(param_dtype=LOW, reduce_dtype=WIDE, output_dtype=LOW)), "leave output_dtype out"),
    "norm": (("O2", _policies(param_dtype=LOW, reduce_dtype=WIDE), functools.partial(Net, True)), "batch norm"),
    "bf16": (("O5", None, lambda: Net().bfloat16()), "sharded in bfloat16"),
    "fp16": (("O2", None, lambda: Net().half()), "leave .half() out"),
    "too late": (("O2", None, Net, True), 'mp_policy=amp.fsdp_policy("O2")'),
    "optimizer": (("O2", None, Net, False, True), "no optimizer has any of the shards"),
    "O3": (("O3", _policies(param_dtype=LOW, reduce_dtype=WIDE)), "use O2"),
}


def _beside_shards(level, whole):
    """What initialize says of a head beside a sharded layer, and whether all that the optimizer has is FP32."""
    amp.shutdown()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    fsdp.fully_shard(model[0], mp_policy=amp.fsdp_policy(level))
    if whole:
        fsdp.fully_shard(model, mp_policy=amp.fsdp_policy(level))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        model, optimizer = amp.initialize(model, ADAM(model.parameters()), opt_level=level)
    said = [line for line in printed.getvalue().split("\n") if line.startswith("Outside of fully_shard")]
    return said, {param.dtype for param in optimizer.param_groups[0]["params"]} == {WIDE}


def refusals(rank, world):
    told = {}
    for name, ((level, policy, *rest), words) in REFUSED.items():
        model, rest = (rest[0](), rest[1:]) if rest else (None, ())
        message = _message(_refused, level, policy, model, *rest)
        told[name] = words in message or message
    told["after a forward"] = "model.reshard()" in _message(_after_forward)
    other = _message(functools.partial(_refused, "O2", cast_model_type=torch.bfloat16))
    told["the script's type"] = 'amp.fsdp_policy("O5")' in other or other
    split = _message(functools.partial(_refused, "O5", master_weights="split"))
    told["split"] = "leave it out" in split or split
    for kind in (FusedLAMB, FusedNovoGrad):
        told[kind.__name__] = "norms of whole tensors" in _message(start, "O2", True, None, kind)
    for level, masters in (("O2", True), ("O4", False)):
        said, wide = _beside_shards(level, False)
        names = [] if rank else [True]  # the first rank prints
        told[f"beside shards, {level}"] = (wide and ["1.weight, 1.bias" in line for line in said] == names) or said
        told[f"masters, {level}"] = ["FP32 masters of its own" in line for line in said] == ([] if rank else [masters])
        told[f"all are shards, {level}"] = _beside_shards(level, True) == ([], True)
    return told


def norms(rank, world):
    """A policy for a module around batch norms, without those that are sharded by themselves."""
    model = Net(norm=True)
    if not OVERRIDES:
        return "shard norm first" in _message(amp.fsdp_policy, "O2", model)
    own = amp.fsdp_policy("O2", model.norm)
    kept = amp.fsdp_policy("O5", model).param_dtype_override_fn
    fsdp.fully_shard(model.norm, mp_policy=own)
    return (
        own.param_dtype is None and kept(model.first.weight) is None
        and amp.fsdp_policy("O2", model).param_dtype_override_fn is None
    )


# ---- tensor parallelism ----


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.last(torch.relu(self.first(self.norm(x))))


def _parallelize(model, world, level):
    """With parallel sequences, whose norms get partial gradients. level: fully_shard as well, over one rank."""
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("dp", "tp"))
    first, last = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel()
    parallelize_module(model, mesh["tp"], {"norm": SequenceParallel(sequence_dim=0), "first": first, "last": last})
    if level:
        fsdp.fully_shard(model, mesh=mesh["dp"], mp_policy=amp.fsdp_policy(level))
    return model


def _train_parallel(level, rank=0, world=1, sharded=True):
    """The losses; the last rank has an overflow in the third step. Both gradients of one parameter lie as it does."""
    amp.shutdown()
    model = Parallel()
    if world > 1:
        _parallelize(model, world, level if sharded else None)
    model, optimizer = amp.initialize(
        model, ADAM(model.parameters()), opt_level=level, loss_scale="dynamic", init_scale=2.0**10, verbosity=0
    )
    losses, lie = [], []
    for step in range(8):
        x = batch(step)[0].chunk(world)[rank]
        loss = (local(model(x)) - 1).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            if step == 2 and rank == world - 1:
                local(model.first.weight.grad).view(-1)[0] = torch.inf
        lie += [param.grad.placements == param.placements for param in model.parameters() if world > 1]
        optimizer.step()
        losses.append(loss.item())
        assert amp.stepped(optimizer) == (step != 2)
    return losses, all(lie)


def tensor_parallel(rank, world):
    exact, _ = _train_parallel("O0")
    told = {}
    for level, sharded in (("O0", False), ("O1", False), *((level, True) for level in WITH_MASTERS)):
        one, _ = _train_parallel(level)
        parts, lie = _train_parallel(level, rank, world, sharded)
        # the bound of other_batches; FP32 has its own: the rounding of each step, relative
        bound = 2 * max(abs(a - b) for a, b in zip(exact, one, strict=True)) + 1e-6 * 8
        told[level] = lie and max(abs(a - b) for a, b in zip(parts, one, strict=True)) <= bound
    message = _message(_train_parallel, "O5", rank, world, False)
    return told | {"refused": 'mesh=mesh["dp"], mp_policy=amp.fsdp_policy("O5")' in message or message}


# ---- checkpoints ----


def save(rank, world, folder, level, start=start):
    """The first half of a training on one batch for all ranks; returns the second half."""
    model, optimizer = start(level)
    train(model, optimizer, range(4), spoil=[2] if rank == 0 else [])
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state, "amp": amp}, checkpoint_id=folder)
    return _second_half(model, optimizer)


def _second_half(model, optimizer):
    """Returns the losses, the scaler, the count of steps, and sums of weights and moments."""
    losses = train(model, optimizer, range(4, 8))
    sums = [each.double().sum().item() for each in values_of(optimizer)]
    return losses, amp.state_dict(), optimizer.param_groups[0].get("step"), sums


def resume(rank, world, folder, level, start=start):
    """The second half, from the files."""
    torch.manual_seed(9)
    model, optimizer = start(level, init_scale=2.0)
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state, "amp": amp}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    return _second_half(model, optimizer)
