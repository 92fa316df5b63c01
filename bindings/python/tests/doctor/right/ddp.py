# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over gloo with fp16, a scaler and accumulation in no_sync."""
import contextlib
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(24):
        x, y, last = torch.randn(8, 16), torch.randint(0, 4, (8,)), step % 2
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y) / 2
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    dist.destroy_process_group()
