# SPDX-License-Identifier: Apache-2.0
"""Starts a script on each GPU of this machine: python -m libamp.torch.parallel.multiproc script.py args...

`--world-size N` among the arguments starts N processes instead. Each receives --rank and --world-size after its
arguments, as from Apex's launcher, and RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment,
for torch.distributed. The output of all ranks except 0 goes to GPU_<rank>.log. If a process fails, the others are
ended, and its status is the launcher's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import torch


def _world_size(arguments: list[str]) -> int:
    if "--world-size" in arguments:
        return int(arguments[arguments.index("--world-size") + 1])
    return max(torch.cuda.device_count(), 1)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _start(arguments: list[str], rank: int, world: int, address: dict[str, str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), **address}
    command = [sys.executable, *arguments, "--rank", str(rank)]
    if rank == 0:
        return subprocess.Popen(command, env=env)
    with open(f"GPU_{rank}.log", "wb") as log:
        return subprocess.Popen(command, env=env, stdout=log)


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    world = _world_size(arguments)
    if "--world-size" not in arguments:
        arguments = [*arguments, "--world-size", str(world)]
    address = {
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT", str(_free_port())),
    }
    ranks = [_start(arguments, rank, world, address) for rank in range(world)]
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            failed = [code for code in codes if code]
            if failed:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if None not in codes:
                return 0
            time.sleep(0.05)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
            rank.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
