# SPDX-License-Identifier: Apache-2.0
"""Ends processes of scripts that were written against Apex. Such a script does not destroy its process groups, and
gloo's threads survive while Python shuts down. A thread that still holds the tensors of the last collective releases
them under Python's lock. Python ends a thread that requests the lock by then, which aborts the process: "terminate
called without an active exception", status 134, after all work is done (torch alone does so in up to 1 of 10 runs). So
gloo groups are destroyed here, and their threads awaited. NCCL groups are not destroyed, because that may wait for
other ranks."""

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
    except OSError:  # the thread has ended
        return False


def _wait_for_threads(limit: float = 0.5) -> None:
    """Waits until all other threads of the process sleep, and none waits for Python's lock, which is free meanwhile."""
    own, end, quiet = str(threading.get_native_id()), time.monotonic() + limit, 0
    if not os.path.isdir(_TASKS):
        return
    while quiet < 2 and time.monotonic() < end:
        time.sleep(0.002)
        quiet = 0 if any(task != own and _is_running(task) for task in os.listdir(_TASKS)) else quiet + 1


def leave() -> None:
    """Destroys the process groups of torch.distributed that the script has not destroyed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    _wait_for_threads()  # torch 2.0 destroys with the lock held, and would deadlock with a thread that requests it
    _destroy_groups(distributed)
    _wait_for_threads()


def at_exit() -> None:
    """Registers leave for the end of the process, once."""
    atexit.unregister(leave)
    atexit.register(leave)
