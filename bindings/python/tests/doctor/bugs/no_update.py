# SPDX-License-Identifier: Apache-2.0
"""Azure/MS-AMP#45: scaler.update() is missing."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(1))
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(12):
    data, target = torch.rand(16, 1, 8, 8), torch.randint(0, 10, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.nll_loss(model(data).float(), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # here
