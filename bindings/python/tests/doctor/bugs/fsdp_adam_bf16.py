# SPDX-License-Identifier: Apache-2.0
"""areal-project/AReaL#1292: FSDP2 of a bf16 model gives AdamW bf16 moments, and the loss stays three times higher."""
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(torch.bfloat16)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # here
    for _ in range(25):
        x = torch.randn(16, 32, dtype=torch.bfloat16)
        loss = nn.functional.cross_entropy(model(x).float(), x[:, :8].argmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
