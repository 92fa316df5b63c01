# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm on two gloo ranks against torch's BatchNorm on the joint batch in FP64, and what makes models of it."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from libamp.torch import parallel
from ranks import on_ranks
from torch import nn

SyncBatchNorm = parallel.SyncBatchNorm
C = 5
SHAPES = {2: (6, C), 3: (6, C, 7), 4: (6, C, 3, 5), 5: (6, C, 2, 3, 2)}


def joint(shape):
    """The joint batch, its cotangent and a residual, far from mean 0: what E[x^2] - E[x]^2 would lose."""
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=torch.float64) * torch.arange(1, C + 1).view(-1, *[1] * (len(shape) - 2)) + 30
    return x, torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def settings(module):
    torch.manual_seed(4)
    with torch.no_grad():
        if module.weight is not None:
            module.weight.copy_(torch.rand(C) + 0.5)
            module.bias.copy_(torch.randn(C))
    return module


def split(tensor, rank, rows):
    begin = sum(rows[:rank])
    return tensor[begin : begin + rows[rank]]


def _forward(rank, world, options, shape, rows, dtype, residual):
    last = options.get("channel_last", False)
    module = (
        settings(SyncBatchNorm(C, **options)).double()
        if dtype == torch.float64
        else settings(SyncBatchNorm(C, **options))
    )
    x, dy, z = (split(t, rank, rows).to(dtype) for t in joint(shape))
    if last:
        x, dy, z = (t.movedim(1, -1).contiguous() for t in (x, dy, z))
    x.requires_grad_(), z.requires_grad_()
    for _ in range(2):  # the running average has two entries
        module.zero_grad()
        x.grad = z.grad = None
        y = module(x, z) if residual else module(x)
        y.backward(dy)
    out = [y.detach(), x.grad, *([z.grad] if residual else [])]
    assert all(t.dtype == dtype for t in out)
    if last:
        out = [t.movedim(-1, 1) for t in out]
    return out, [p.grad for p in module.parameters()], dict(module.named_buffers())


def reference(options, shape, residual):
    own = {k: v for k, v in options.items() if k not in ("channel_last", "fuse_relu")}
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    module = settings(kind(C, **own)).double()
    x, dy, z = joint(shape)
    x.requires_grad_(), z.requires_grad_()
    for _ in range(2):
        module.zero_grad()
        x.grad = z.grad = None
        y = module(x) + z if residual else module(x)
        y = torch.relu(y) if options.get("fuse_relu") else y
        y.backward(dy)
    return (
        [y.detach(), x.grad, *([z.grad] if residual else [])],
        [p.grad for p in module.parameters()],
        dict(module.named_buffers()),
    )


def close(found, wanted, dtype):
    """FP32 inside: inputs near 30 lose 30/1 of the precision when the mean is taken off, and a few hundred terms are
    summed (1e-5 of FP32 covers 80 units); then one rounding to the type, and what its inputs lost in it."""
    bound = {torch.float64: 1e-12, torch.float32: 3e-5, torch.float16: 4e-2, torch.bfloat16: 3e-1}[dtype]
    scale = 1 + float(wanted.detach().abs().max()) if wanted.numel() else 1
    assert float((found.double() - wanted).detach().abs().max() if found.numel() else 0) <= bound * scale


CASES = [
    ({}, 4, (3, 3), torch.float32, False),
    ({}, 2, (3, 3), torch.float32, False),
    ({}, 3, (2, 4), torch.float64, False),
    ({}, 5, (5, 1), torch.float32, False),
    ({}, 4, (6, 0), torch.float32, False),
    ({"affine": False}, 4, (2, 4), torch.float32, False),
    ({"momentum": None}, 4, (2, 4), torch.float32, False),
    ({"track_running_stats": False}, 4, (2, 4), torch.float32, False),
    ({"channel_last": True}, 4, (2, 4), torch.float32, False),
    ({"channel_last": True}, 2, (2, 4), torch.float32, False),
    ({"channel_last": True, "fuse_relu": True}, 4, (2, 4), torch.float64, True),
    ({"fuse_relu": True}, 4, (2, 4), torch.float64, True),
    ({}, 4, (3, 3), torch.float16, True),
    ({"channel_last": True}, 4, (3, 3), torch.bfloat16, False),
]


@pytest.mark.parametrize(("options", "dims", "rows", "dtype", "residual"), CASES)
def test_is_batch_norm_of_the_joint_batch(options, dims, rows, dtype, residual):
    shape = SHAPES[dims]
    wanted, wanted_params, wanted_buffers = reference(options, shape, residual)
    ranks = on_ranks(_forward, options, shape, rows, dtype, residual)
    for rank, (found, _, buffers) in enumerate(ranks):
        for f, w in zip(found, wanted, strict=True):
            close(f, split(w, rank, rows), dtype)
        assert buffers.keys() == wanted_buffers.keys()
        for name, buffer in buffers.items():
            close(buffer, wanted_buffers[name], dtype)
            assert torch.equal(buffer, ranks[0][2][name])
    for index, wanted_grad in enumerate(wanted_params):  # each rank has its own part, for DDP to add
        together = sum(params[index].double() for _, params, _ in ranks)
        close(together / len(wanted[0]), wanted_grad / len(wanted[0]), dtype)


@pytest.mark.parametrize("dims", [2, 3, 4, 5])
@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_evaluation_in_every_layout(dims, channel_last, dtype):
    x, dy, z = (t.to(dtype) for t in joint(SHAPES[dims]))
    module = settings(SyncBatchNorm(C, channel_last=channel_last, fuse_relu=True))
    module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    module.eval()
    vector = [1, -1] + [1] * (dims - 2)
    mean, var, weight, bias = (
        t.detach().double().view(vector) for t in (module.running_mean, module.running_var, module.weight, module.bias)
    )
    leaf = x.double().requires_grad_()
    wanted = torch.relu((leaf - mean) / (var + module.eps).sqrt() * weight + bias + z.double())
    wanted.backward(dy.double())
    if channel_last:
        x, dy, z = (t.movedim(1, -1).contiguous() for t in (x, dy, z))
    x.requires_grad_()
    y = module(x, z)
    y.backward(dy)
    found, grad = (y, x.grad) if not channel_last else (y.movedim(-1, 1), x.grad.movedim(-1, 1))
    assert y.dtype == dtype
    close(found.detach(), wanted.detach(), dtype)
    sure = wanted.detach().abs() > 0.5  # where rounding cannot turn the ReLU over
    close(grad[sure], leaf.grad[sure], dtype)
    assert module.num_batches_tracked == 0


def test_alone_it_is_batch_norm_of_this_process():
    x, dy, _ = joint(SHAPES[4])
    module, peer = settings(SyncBatchNorm(C)).double(), settings(nn.BatchNorm2d(C)).double()
    for bn in (module, peer):
        bn(x).backward(dy)
    close(module(x), peer(x), torch.float64)
    close(module.weight.grad, peer.weight.grad, torch.float64)
    with pytest.raises(ValueError, match="more than 1 value"):
        SyncBatchNorm(3)(torch.ones(1, 3))
    with pytest.raises(ValueError, match="channels"):
        SyncBatchNorm(3)(torch.ones(2, 4, 3))
    with pytest.raises(ValueError, match="2D"):
        SyncBatchNorm(3)(torch.ones(3))


def test_running_statistics_in_half():
    x = joint(SHAPES[4])[0].half()
    module = SyncBatchNorm(C).half()
    module(x)
    peer = nn.BatchNorm2d(C)
    peer(x.float())
    assert module.running_var.dtype == torch.float16
    close(module.running_var, peer.running_var.double(), torch.float16)


def _one_value(rank, world):
    return SyncBatchNorm(3)(torch.full((1, 3), float(rank)))


def test_one_value_a_rank_is_enough():
    first, second = on_ranks(_one_value)
    torch.testing.assert_close(first, -second)
    assert float(second.detach()[0, 0]) > 0.99


def _groups(rank, world):
    group = parallel.create_syncbn_process_group(2)
    assert parallel.create_syncbn_process_group(0) is None
    with pytest.raises(AssertionError):
        parallel.create_syncbn_process_group(3)
    with pytest.raises(AssertionError):
        parallel.create_syncbn_process_group(8)
    module = SyncBatchNorm(1, momentum=1.0, process_group=group)
    assert copy.deepcopy(module).process_group is group
    assert pickle.loads(pickle.dumps(module)).process_group is None
    module(torch.full((2, 1), float(rank)))
    return dist.get_world_size(group), float(module.running_mean)


def test_groups_of_ranks():
    assert on_ranks(_groups, world=4) == [(2, 0.5), (2, 0.5), (2, 2.5), (2, 2.5)]


def test_conversion_keeps_what_there_is():
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(3, 4), shared, nn.Sequential(nn.BatchNorm1d(4, affine=False), shared))
    model.append(nn.InstanceNorm1d(4)).append(nn.BatchNorm2d(4, momentum=None, eps=1e-3))
    model[1].weight.requires_grad_(False)
    model[4].eval()
    model[4].register_forward_hook(lambda *_: None)
    calls = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    new = parallel.convert_syncbn_model(model, channel_last=True)
    after = {**dict(new.named_parameters()), **dict(new.named_buffers())}
    assert before.keys() == after.keys() and all(after[name] is before[name] for name in before)
    assert {id(p) for p in new.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    assert [type(m) for m in new] == [nn.Linear, SyncBatchNorm, nn.Sequential, nn.InstanceNorm1d, SyncBatchNorm]
    assert new[1] is new[2][1] and type(new[2][0]) is SyncBatchNorm
    assert not new[1].weight.requires_grad and new[1].bias.requires_grad
    assert new[1].training and not new[4].training
    assert new[4].momentum is None and new[4].eps == 1e-3 and new[4].channel_last
    new[1](torch.randn(3, 4))
    assert calls == [1]


def test_conversion_of_a_batch_norm_itself_and_again():
    new = parallel.convert_syncbn_model(nn.BatchNorm2d(3))
    assert type(new) is SyncBatchNorm and not new.fuse_relu
    again = parallel.convert_syncbn_model(nn.SyncBatchNorm(3), channel_last=True)
    assert type(again) is SyncBatchNorm and again.channel_last and again.process_group is None
    state = nn.BatchNorm2d(3).state_dict()
    assert new.state_dict().keys() == state.keys()
    new.load_state_dict(state)


def _train(rank, world):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    model = parallel.DistributedDataParallel(parallel.convert_syncbn_model(model), message_size=1)
    torch.manual_seed(9)
    x = torch.randn(8, 3, 6, 6)[rank * 4 : rank * 4 + 4]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return {k.removeprefix("module."): v.clone() for k, v in model.state_dict().items()}


def test_training_equals_one_process_with_the_joint_batch():
    first, second = on_ranks(_train)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    torch.manual_seed(9)
    x = torch.randn(8, 3, 6, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    for name, wanted in model.state_dict().items():
        assert torch.equal(first[name], second[name])
        # FP32 of another order of sums, over four steps: 1e-5 is 80 units of it
        torch.testing.assert_close(first[name], wanted, rtol=1e-4, atol=1e-5)
