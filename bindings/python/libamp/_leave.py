# SPDX-License-Identifier: Apache-2.0
"""Scripts written against Apex never destroy their process groups. Gloo's threads then live until Python tears its modules
down, and one that is still there is the end of the process: "terminate called without an active exception", status 134, after
the script is done. torch alone does that, too. NCCL's groups are left alone: to destroy one may wait for other ranks."""

from __future__ import annotations

import atexit
import sys


def destroy_groups() -> None:
    """Those of torch.distributed, if all are gloo's and the script has left them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    groups = list(distributed.distributed_c10d._world.pg_map)
    if all(distributed.get_backend(group) == "gloo" for group in groups):
        distributed.destroy_process_group()


def at_exit() -> None:
    """From here on; again: nothing."""
    atexit.unregister(destroy_groups)
    atexit.register(destroy_groups)
