# SPDX-License-Identifier: Apache-2.0
"""Runs a function of a test on several ranks: gloo, a file as the meeting place, each rank a process that ends."""

import datetime
import multiprocessing
import pathlib
import pickle
import tempfile
import traceback

import torch
import torch.distributed as dist
from half import half_on_cpu

LIMIT = 60  # seconds; they take one or two

# Ranks are forked from a process that has imported torch and done nothing: no threads of autograd, no CUDA. What the
# tests import, and torch's optimizers (_dynamo), is there too: it takes seconds, and each rank would do it anew.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "libamp.torch.amp",
        "libamp.torch.parallel",
        "pytest",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
    ]
)


def _run(rank, world, store, answer, function, args):
    torch.set_num_threads(1)
    try:
        limit = datetime.timedelta(seconds=LIMIT)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=limit)
        with half_on_cpu():
            result = function(rank, world, *args)
        dist.barrier()
        answer.send_bytes(pickle.dumps((True, result)))  # by value: shared memory would end with this process
    except BaseException:
        answer.send_bytes(pickle.dumps((False, traceback.format_exc())))


def _answer(connection):
    if not connection.poll(LIMIT):
        return False, f"no answer in {LIMIT} s"
    try:
        return pickle.loads(connection.recv_bytes())
    except EOFError:
        return False, "ended without an answer"


def on_ranks(function, *args, world=2):
    """The results of function(rank, world, *args), in the order of ranks; what went wrong on any is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(pathlib.Path(folder) / "store")
        ranks = []
        for rank in range(world):
            mine, its = _context.Pipe(duplex=False)
            process = _context.Process(target=_run, args=(rank, world, store, its, function, args), daemon=True)
            process.start()
            its.close()
            ranks.append((process, mine))
        answers = [_answer(mine) for _, mine in ranks]
        for process, _ in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
    failed = [f"rank {rank}:\n{text}" for rank, (good, text) in enumerate(answers) if not good]
    assert not failed, "\n".join(failed)
    return [result for _, result in answers]
