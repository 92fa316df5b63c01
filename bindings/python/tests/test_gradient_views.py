# SPDX-License-Identifier: Apache-2.0
"""Gradients that are views of somebody's buffer: the buckets of DDP, or a flat tensor of the script's own. They are
written behind libamp's back, and the link between the two must hold."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from levels import PATCHES, WITH_MASTERS
from libamp.torch import amp
from torch import nn

LEVELS = ("O0", "O1", "O2", "O4", "O5")


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path_factory.mktemp('group')}/store", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def make(level, scale):
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    if level:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=scale, verbosity=0)
    return model, optimizer


def losses(call, pieces):
    generator = torch.Generator().manual_seed(1)
    for _ in range(pieces):
        yield call(torch.randn(5, 8, generator=generator)).float().pow(2).mean()


def total(model, optimizer, level):
    found = [p.detach().clone() for p in (amp.master_params(optimizer) if level else model.parameters())]
    amp.shutdown()  # a later training without libamp has no casts
    return found


def train_in_buckets(level, scale, accumulate, bucket_view, to_none):
    """accumulate: two blocks for each step; "delayed": the first delays."""
    model, optimizer = make(level, scale)
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    pieces = 2 if accumulate else 1
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        optimizer.zero_grad(set_to_none=to_none)
        for i in range(pieces):
            last = i == pieces - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                loss = parallel(torch.randn(5, 8, generator=generator)).float().pow(2).mean()
                if level:
                    delay = accumulate == "delayed" and not last
                    with amp.scale_loss(loss, optimizer, delay_unscale=delay) as scaled:
                        scaled.backward()
                else:
                    loss.backward()
        optimizer.step()
    return total(model, optimizer, level)


@pytest.mark.parametrize("to_none", (True, False))
@pytest.mark.parametrize("accumulate", (False, True, "delayed"))
@pytest.mark.parametrize("scale", (1.0, 1024.0))
@pytest.mark.parametrize("level", LEVELS)
def test_buckets_of_ddp(level, scale, accumulate, to_none):
    """As without views, and at O0 as without libamp, bit for bit: the scale is a power of two."""
    found = train_in_buckets(level, scale, accumulate, True, to_none)
    assert all(map(torch.equal, found, train_in_buckets(level, scale, accumulate, False, to_none)))
    if level == "O0":
        assert all(map(torch.equal, found, train_in_buckets(None, 1.0, accumulate, True, to_none)))


def train_flat(level, scale, fails=False):
    """Gradients are parts of one tensor, which is cleared as a whole."""
    model, optimizer = make(level, scale)
    flat = torch.zeros(18)
    parts = []
    for p, part in zip(model.parameters(), flat.split([16, 2])):
        p.grad = part.view_as(p)
        parts.append(p.grad)
    for i in range(4):
        flat.zero_()
        for loss in losses(model, 2):
            if not level:
                loss.backward()
                continue
            if fails and i == 2:
                before = flat.clone()
                with pytest.raises(KeyError), amp.scale_loss(loss, optimizer, delay_unscale=False) as scaled:
                    scaled.backward(retain_graph=True)
                    raise KeyError
                assert torch.equal(flat, before)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        if level in (None, "O0", "O1", "O4"):
            assert all(p.grad is part for p, part in zip(model.parameters(), parts))
            assert flat.abs().sum() > 0
        optimizer.step()
    return total(model, optimizer, level)


@pytest.mark.parametrize("scale", (2.0, 1024.0))
def test_flat_buffers_stay_the_gradients(scale):
    wanted = train_flat(None, 1.0)
    assert all(map(torch.equal, train_flat("O0", scale), wanted))
    assert all(map(torch.equal, train_flat("O0", scale, fails=True), wanted))


@pytest.mark.parametrize("level", PATCHES)
def test_flat_buffers_with_casts(level):
    assert all(map(torch.equal, train_flat(level, 1024.0), train_flat(level, 512.0)))


@pytest.mark.parametrize("level", WITH_MASTERS)
def test_zero_grad_clears_views_at_levels_with_masters(level):
    model, optimizer = make(level, 128.0)
    flat = torch.ones(18, dtype=model.weight.dtype)
    model.weight.grad, model.bias.grad = flat[:16].view(2, 8), flat[16:]
    optimizer.zero_grad(set_to_none=False)
    assert not flat.any()
