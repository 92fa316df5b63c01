# SPDX-License-Identifier: Apache-2.0
"""Two models, two losses, two optimizers, one scaler, one update (PyTorch's notes)."""
import torch
from torch import nn

torch.manual_seed(0)
model0, model1 = nn.Linear(16, 8), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer0 = torch.optim.SGD(model0.parameters(), lr=0.01)
optimizer1 = torch.optim.Adam(model1.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(30):
    x, y = torch.randn(16, 16), torch.randn(16, 8)
    optimizer0.zero_grad()
    optimizer1.zero_grad()
    with torch.autocast("cpu", torch.float16):
        output0, output1 = model0(x), model1(x)
        loss0 = nn.functional.mse_loss(2 * output0 + 3 * output1, y)
        loss1 = nn.functional.mse_loss(3 * output0 - 5 * output1, y)
    scaler.scale(loss0).backward(retain_graph=True)
    scaler.scale(loss1).backward()
    scaler.unscale_(optimizer0)
    scaler.step(optimizer0)
    scaler.step(optimizer1)
    scaler.update()
