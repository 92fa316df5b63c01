# SPDX-License-Identifier: Apache-2.0
"""
What ranks do with the sharded optimizers, beside the plain optimizer on the mean of all ranks' gradients.

Gradients are eighths, so that sums are exact in every type and order.
"""

import functools
import warnings

import libamp
import pytest
import torch
import torch.distributed as dist
from levels import PATCHES, WITH_MASTERS
from libamp.torch import amp
from libamp.torch.contrib.optimizers import _buckets
from libamp.torch.contrib.optimizers.distributed_fused_adam import DistributedFusedAdam
from libamp.torch.optimizers import FusedAdam
from torch import nn

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
SHAPES = [(7, 33), (33,), (2, 3, 4, 5), (1,), (0,), (3, 40)]
TINY = 200 * 4 / 2**20  # megabytes: several buckets
NUMBERS = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}


def make_params(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    params = [torch.randn(shape).to(dtype) for shape in SHAPES]
    params[2] = params[2].contiguous(memory_format=torch.channels_last)
    return [nn.Parameter(param) for param in params]


def make_grads(rank, step, params):
    torch.manual_seed(1000 * step + rank)
    return [(torch.randint(-8, 9, param.shape) / 8).to(param.dtype) for param in params]


def backward(params, grads, used=None, scale=None):
    """The gradients are these, exactly."""
    terms = [(p * g).sum() for i, (p, g) in enumerate(zip(params, grads, strict=True)) if used is None or i in used]
    loss = sum(term.float() for term in terms)
    (loss if scale is None else scale(loss)).backward()


def make_groups(params):
    return [{"params": params[1::2], "lr": 0.02}, {"params": params[0::2]}]


def _same(world, p, q):
    """Thirds are not exact: where they are added one after the other the last bits are not the reference's."""
    return torch.equal(p, q) if world < 3 else torch.allclose(p, q, rtol=1e-5, atol=1e-6)


class Reference:
    """The plain optimizer on FP32 masters, told of all ranks' gradients."""

    def __init__(self, kind, params, **settings):
        self.params = [nn.Parameter(param.detach().clone().float()) for param in params]
        self.optimizer = kind(make_groups(self.params), lr=0.01, **settings)

    def step(self, world, step, average=True, used=None, micro=1):
        for param in self.params:
            param.grad = torch.zeros_like(param)
        for rank in range(world):
            for part in range(micro):
                for i, grad in enumerate(make_grads(rank, micro * step + part, self.params)):
                    if used is None or i in used(rank):
                        self.params[i].grad += grad
        for param in self.params if average else ():
            param.grad /= world
        self.optimizer.step()


def _masters(optimizer):
    state = optimizer.state_dict()
    indices = [index for group in state["param_groups"] for index in group["params"]]
    by_param = dict(zip(optimizer.parameters(), indices, strict=True))
    return lambda param: state["state"][by_param[param]]["param"]


# ---- Adam, as it is configured ----

ADAM = {
    "default": {},
    "buckets": {"bucket_cap_mb": TINY, "pipeline_size": 1},
    "l2": {"adam_w_mode": False, "bias_correction": False},
    "no overlap": {"overlap_grad_sync": False, "bucket_cap_mb": TINY},
    "sum": {"average_grad_sync": False},
    "bf16": {"params": torch.bfloat16, "bucket_cap_mb": TINY},
    "fp16": {"params": torch.float16, "param_sync_dtype": torch.float16},
    "sent in half": {"grad_sync_dtype": torch.bfloat16, "param_sync_dtype": torch.int32},
    "fp64": {"params": torch.float64},
    "remainders": {
        "params": torch.bfloat16,
        "param_sync_dtype": torch.bfloat16,
        "store_params": False,
        "store_param_remainders": True,
    },
}


def _trains(rank, world, settings, same=torch.equal):
    """Masters that differ from the reference's, and parameters that are not the masters, rounded."""
    settings = dict(settings)
    params = make_params(settings.pop("params", torch.float32), seed=rank)
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, **NUMBERS, **settings)
    told = {name: settings[name] for name in ("adam_w_mode", "bias_correction") if name in settings}
    reference = Reference(FusedAdam, make_params(params[0].dtype), **NUMBERS, **told)
    for step in range(4):
        optimizer.zero_grad()
        backward(params, make_grads(rank, step, params))
        optimizer.step()
        reference.step(world, step, settings.get("average_grad_sync", True))
    master = _masters(optimizer)
    wrong = [i for i, p in enumerate(params) if not same(master(p), reference.params[i].detach())]
    if settings.get("store_param_remainders"):
        rounded = [(p.float() - q).abs().max() <= q.abs().max() / 128 for p, q in pairs(params, reference)]
    else:
        rounded = [same(p, q.to(p.dtype)) for p, q in pairs(params, reference)]
    return wrong, all(rounded)


def pairs(params, reference):
    return [(p.detach(), q.detach()) for p, q in zip(params, reference.params, strict=True) if p.numel()]


def adam(rank, world):
    return {name: _trains(rank, world, settings) for name, settings in ADAM.items()}


def reduce_scatter(rank, world):
    """As backends do it that have one, and gloo since PyTorch 2.7."""
    by_itself = _buckets._adds_by_itself
    _buckets._adds_by_itself = lambda flat, group: TORCH >= (2, 7)
    try:
        return _trains(rank, world, ADAM["buckets"], functools.partial(_same, world))
    finally:
        _buckets._adds_by_itself = by_itself


def half_state(rank, world):
    """NVIDIA's tolerances."""
    params = make_params(torch.bfloat16)
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, dtype=torch.bfloat16, **NUMBERS)
    reference = Reference(FusedAdam, params, **NUMBERS)
    for step in range(3):
        backward(params, make_grads(rank, step, params))
        optimizer.step()
        reference.step(world, step)
    for param, other in pairs(params, reference):
        torch.testing.assert_close(param.float(), other, rtol=5e-2, atol=1e-2)
    return {entry["exp_avg"].dtype for key, entry in optimizer.state_dict()["state"].items() if key != "step"}


# ---- gradients ----


def accumulation(rank, world):
    """Each way to run three backwards before a step."""
    found = []
    for way in ("each is sent", "no_sync", "greedy", "all wait"):
        params = make_params()
        optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, bucket_cap_mb=TINY, **NUMBERS)
        reference = Reference(FusedAdam, params, **NUMBERS)
        for step in range(2):
            for part in range(3):
                with optimizer.no_sync(greedy_grad_copy=way == "greedy"):
                    if way == "all wait" or (way != "each is sent" and part < 2):
                        backward(params, make_grads(rank, 3 * step + part, params))
                        continue
                backward(params, make_grads(rank, 3 * step + part, params))
            optimizer.step()
            reference.step(world, step, micro=3)
        found.append(all(_same(world, p, q) for p, q in pairs(params, reference)))
    return found


def unused(rank, world):
    """Ranks that go different ways, several backwards long; what none used counts as zeros, what is frozen stays."""
    params = make_params()
    params[4].requires_grad_(False)
    params[1].requires_grad_(False)
    frozen = params[1].clone()
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, bucket_cap_mb=TINY, **NUMBERS)
    reference = Reference(FusedAdam, params, **NUMBERS)

    def used(which):
        return {0, 2} if which == 0 else {2, 3}

    for step in range(3):
        for part in range(2):
            backward(params, make_grads(rank, 2 * step + part, params), used(rank))
        optimizer.step()
        reference.step(world, step, used=used, micro=2)
    trained = [pair for i, pair in enumerate(zip(params, reference.params, strict=True)) if i not in (1, 4)]
    return torch.equal(params[1], frozen), all(_same(world, p.detach(), q.detach()) for p, q in trained)


def overlap(rank, world):
    """How much has been sent when backward ends, and when it has just begun."""
    params, sent, inside = make_params(), [], []
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, bucket_cap_mb=TINY)
    send = _buckets.Reduction.__init__
    _buckets.Reduction.__init__ = lambda self, *args: (sent.append(1), send(self, *args))[1]
    try:
        first = params[0] * 1
        first.register_hook(lambda grad: inside.append(len(sent)))
        backward([first, *params[1:]], make_grads(rank, 0, params))
    finally:
        _buckets.Reduction.__init__ = send
    optimizer.step()
    return inside[0] > 0, len(sent) > inside[0], all(param.grad is None for param in params)


def norms(rank, world):
    params = make_params()
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, bucket_cap_mb=TINY)
    reference = Reference(FusedAdam, params)
    for step, limit in enumerate((3.5, 1e6)):
        backward(params, make_grads(rank, step, params))
        part = optimizer.grad_norm([params[0], params[2]])
        clipped = optimizer.clip_grad_norm(limit)
        for i, param in enumerate(reference.params):
            param.grad = sum(make_grads(each, step, params)[i] for each in range(world)) / world
        expected = torch.stack([reference.params[i].grad.norm() for i in (0, 2)]).norm()
        torch.testing.assert_close(part, expected)
        torch.testing.assert_close(clipped, torch.nn.utils.clip_grad_norm_(reference.params, limit))
        optimizer.step()
        reference.optimizer.step()
    for param, other in pairs(params, reference):
        torch.testing.assert_close(param, other, rtol=1e-6, atol=1e-7)
    return True


def failed_backward(rank, world):
    params = make_params()
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, bucket_cap_mb=TINY)
    reference = Reference(FusedAdam, params)

    def fail(grad):
        raise ArithmeticError("in backward")

    broken = params[0] * 1
    broken.register_hook(fail)
    with pytest.raises(ArithmeticError):
        backward([broken, *params[1:]], make_grads(rank, 7, params))
    optimizer.zero_grad(set_to_none=True)
    for step in range(2):
        backward(params, make_grads(rank, step, params))
        optimizer.step()
        reference.step(world, step)
    return all(torch.equal(p, q) for p, q in pairs(params, reference))


# ---- loss scales ----


def grad_scaler(rank, world):
    """NVIDIA's: steps are skipped by all ranks, whoever saw the overflow. Parameters, scales, and what is refused."""
    if not hasattr(torch.amp, "GradScaler"):
        return None
    warnings.simplefilter("ignore", FutureWarning)  # torch's, of the scaler that step gets
    params, steps, scales = make_params(), [], []
    optimizer = DistributedFusedAdam(make_groups(params), lr=0.01, bucket_cap_mb=TINY)
    reference = Reference(FusedAdam, params)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for step, spoilt in enumerate((None, world - 1, None, 0, None)):
        optimizer.zero_grad()
        before = params[0].clone()
        grads = make_grads(rank, step, params)
        grads[0][-1, -1] += float("inf") if spoilt == rank else 0.0
        backward(params, grads, scale=scaler.scale)
        if step == 2:
            optimizer.unscale_grads(grad_scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        steps.append(not torch.equal(before, params[0]))
        scales.append(scaler.get_scale())
        if spoilt is None:
            reference.step(world, step)
    backward(params, make_grads(rank, 0, params), scale=scaler.scale)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"optimizer\.unscale_grads\(grad_scaler=scaler\)"):
        scaler.step(optimizer)
    return steps, scales, all(torch.equal(p, q) for p, q in pairs(params, reference))


def beside_amp(rank, world):
    """(steps and the scale, are ranks alike, is it what whole gradients give) of O1 and O4; nothing is found amiss."""
    warnings.simplefilter("error", libamp.FindingWarning)
    found = []
    for level in PATCHES:
        nets = []
        for kind in (FusedAdam, DistributedFusedAdam):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            settings = {"opt_level": level, "verbosity": 0, "process_group": True if kind is FusedAdam else None}
            net, optimizer = amp.initialize(net, kind(net.parameters(), lr=0.01), **settings)
            told = []
            for step in range(4):
                torch.manual_seed(10 * step + rank)
                optimizer.zero_grad()
                with amp.scale_loss(net(torch.randn(4, 8)).float().pow(2).mean(), optimizer) as loss:
                    loss.backward()
                    if step == 1 and rank == 0 and level == "O1":
                        net[2].weight.grad[0] = float("inf")
                for param in net.parameters() if kind is FusedAdam else ():
                    dist.all_reduce(param.grad)
                    param.grad /= world
                if kind is DistributedFusedAdam:
                    optimizer.clip_grad_norm(1e6)
                optimizer.step()
                told.append((amp.stepped(optimizer), amp.state_dict()["loss_scaler0"]["loss_scale"]))
            nets.append((told, [param.detach().clone() for param in net.parameters()]))
            amp.shutdown()
        (expected, those), (told, these) = nets
        mine = these[0].clone()
        dist.broadcast(mine, 0)
        close = all(torch.allclose(p, q, rtol=1e-5, atol=1e-6) for p, q in zip(these, those, strict=True))
        found.append((told == expected, torch.equal(mine, these[0]), close))
    return found


def amp_refusals(rank, world):
    words = []
    for level in WITH_MASTERS:
        net = nn.Linear(4, 4)
        with pytest.raises(RuntimeError) as error:
            amp.initialize(net, DistributedFusedAdam(net.parameters()), opt_level=level, verbosity=0)
        words.append(str(error.value))
        amp.shutdown()
    net = nn.Linear(4, 4)
    net, optimizer = amp.initialize(
        net, DistributedFusedAdam(net.parameters()), opt_level="O5", master_weights=False, verbosity=0
    )
    for _ in range(2):
        with amp.scale_loss(net(torch.ones(2, 4)).float().sum(), optimizer) as loss:
            loss.backward()
        optimizer.step()
    types = net.weight.dtype, optimizer.state_dict()["state"][0]["param"].dtype
    amp.shutdown()
    return words, types
