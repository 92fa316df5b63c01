# SPDX-License-Identifier: Apache-2.0
"""Four batches to a step under a GradScaler: unscale_, clip, step and update only at the fourth."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 32), nn.Flatten(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
every = 4
for i in range(48):
    tokens = torch.randint(0, 50, (8, 8))
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0]) / every
    scaler.scale(loss).backward()
    if (i + 1) % every == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
