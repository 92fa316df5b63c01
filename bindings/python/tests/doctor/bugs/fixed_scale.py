# SPDX-License-Identifier: Apache-2.0
"""open-mmlab/mmdetection#3690: a fixed loss scale of 512 overflows again and again, and never backs off."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for _ in range(40):
    x, boxes = torch.randn(32, 16), 25 * torch.randn(32, 4)
    with torch.autocast("cpu", torch.float16):
        loss = (model(x) - boxes).pow(2).sum(1).mean() * 8
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # here
    scaler.update(512.0)
