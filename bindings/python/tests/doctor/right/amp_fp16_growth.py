# SPDX-License-Identifier: Apache-2.0
"""The scale grows to the edge and falls back there: a skip now and then is how the scaler works."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv1d(16, 4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=8)
for _ in range(150):
    x = torch.randn(8, 4, 24)
    with torch.autocast("cpu", torch.float16):
        loss = (model(x).float() - x.roll(1, -1)).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
