# SPDX-License-Identifier: Apache-2.0
"""How a script written against Apex ends. It leaves its process groups as they are, and gloo's threads then live on
while Python is torn down. One of them that still holds the tensors of the last collective gives them up under Python's
lock, and who asks for that lock by then is ended by Python, which ends the process: "terminate called without an active
exception", status 134, after all is done (torch alone does that in up to 1 of 10 runs). So groups of gloo are
destroyed, and threads are waited for. NCCL's groups are left alone: to destroy one may wait for other ranks."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from types import ModuleType

_TASKS = "/proc/self/task"


def _destroy_groups(distributed: ModuleType) -> None:
    if not distributed.is_initialized():
        return
    groups = list(distributed.distributed_c10d._world.pg_map)
    if all(distributed.get_backend(group) == "gloo" for group in groups):
        distributed.destroy_process_group()


def _is_running(task: str) -> bool:
    try:
        with open(f"{_TASKS}/{task}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended
        return False


def _wait_for_threads(limit: float = 0.5) -> None:
    """Until the process's other threads all wait for something, Python's lock not among it: that is free meanwhile."""
    own, end, quiet = str(threading.get_native_id()), time.monotonic() + limit, 0
    if not os.path.isdir(_TASKS):
        return
    while quiet < 2 and time.monotonic() < end:
        time.sleep(0.002)
        quiet = 0 if any(task != own and _is_running(task) for task in os.listdir(_TASKS)) else quiet + 1


def leave() -> None:
    """For all of torch.distributed that the script has left."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    _wait_for_threads()  # torch 2.0 destroys with the lock held, and would wait for ever for a thread that asks for it
    _destroy_groups(distributed)
    _wait_for_threads()


def at_exit() -> None:
    """From here on; again: nothing."""
    atexit.unregister(leave)
    atexit.register(leave)
