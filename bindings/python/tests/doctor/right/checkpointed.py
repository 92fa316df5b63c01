# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing, both kinds, under autocast in fp16 with a scaler."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
stem, head = nn.Linear(16, 32), nn.Linear(32, 4)
blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
params = [p for module in (stem, *blocks, head) for p in module.parameters()]
optimizer = torch.optim.Adam(params, lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
for _ in range(20):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    with torch.autocast("cpu", torch.float16):
        hidden = stem(x)
        for i, block in enumerate(blocks):
            hidden = checkpoint(block, hidden, use_reentrant=i % 2 == 0)
        loss = nn.functional.cross_entropy(head(hidden), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
