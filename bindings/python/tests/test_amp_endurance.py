# SPDX-License-Identifier: Apache-2.0
"""Long runs leave nothing behind; threads with a level each, and forks in the middle of it, do not disturb each
other."""

import gc
import os
import sys
import threading

import pytest
import torch
from levels import LEVELS
from libamp.torch import amp
from torch import nn


class Model(nn.Module):
    """Its loss is part of it: what runs outside a forward obeys the session that patched last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        return torch.nn.functional.mse_loss(self.body(x).float(), x.float())


def _start(level):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic", window=20)


def _step(model, optimizer, x, spoil=False):
    loss = model(x)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
        if spoil:
            next(model.parameters()).grad.fill_(float("inf"))
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
    return loss.detach()


def _counts():
    gc.collect()
    things = gc.get_objects()
    return len(things), sum(issubclass(type(thing), torch.Tensor) for thing in things), sys.getallocatedblocks()


@pytest.mark.plain_half  # which leaves blocks of its own behind
@pytest.mark.parametrize("level", LEVELS)
def test_iterations_leave_nothing_behind(level):
    """Objects that the collector knows, tensors among them, and the interpreter's blocks, which see lost references of
    others: one in each iteration would be 200 at each look. Tables and kept integers grow too, ever slower: one good
    look will do."""
    model, optimizer = _start(level)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))

    def run(iterations):
        for i in range(iterations):
            _step(model, optimizer, x, spoil=i % 10 == 9)
            with amp.disable_casts():
                amp.state_dict()

    run(40)
    grown, before = [], _counts()
    while len(grown) < 5:
        run(200)
        now = _counts()
        objects, tensors, blocks = (new - old for new, old in zip(now, before, strict=True))
        if objects < 20 and tensors == 0 and blocks < 60:
            return
        grown.append((objects, tensors, blocks))
        before = now
    pytest.fail(f"grown by {grown}")


def _train(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    losses = [_step(model, optimizer, torch.randn(6, 4, generator=generator), spoil=i % 7 == 3) for i in range(40)]
    return losses + [param.detach().clone() for param in amp.master_params(optimizer)]


@pytest.mark.parametrize("levels", [("O1", "O4"), ("O2", "O1")], ids="-".join)
def test_threads_train_with_a_level_each(levels):
    """To the bit as one after the other."""
    expected = []
    for seed, level in enumerate(levels):
        expected.append(_train(*_start(level), seed))
        amp.shutdown()
    pairs, found, together = [_start(level) for level in levels], [None, None], threading.Barrier(2, timeout=60)

    def work(seed):
        together.wait()
        found[seed] = _train(*pairs[seed], seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, wanted in zip(found, expected, strict=True):
        assert all(map(torch.equal, result, wanted))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
# Python warns of what is done here: of forks among threads
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_in_the_middle_of_another_threads_training():
    model, optimizer = _start("O1")
    x, over, trained = torch.ones(6, 4), threading.Event(), []

    def work():
        while not over.is_set():
            trained.append(_step(model, optimizer, x))

    thread = threading.Thread(target=work)
    thread.start()
    statuses = []
    try:
        for _ in range(8):
            child = os.fork()
            if child == 0:  # as a worker of a DataLoader does: functions, casts, blocks without them
                product = torch.mm(x.T, x)
                with amp.disable_casts():
                    good = torch.mm(x.T, x).dtype is torch.float32 and product.dtype is torch.float16
                os._exit(0 if good else 1)
            statuses.append(os.waitpid(child, 0)[1])
    finally:
        over.set()
        thread.join()
    assert statuses == [0] * 8 and trained


@pytest.fixture(autouse=True)
def _end():
    torch.set_num_threads(1)
    yield
    amp.shutdown()
