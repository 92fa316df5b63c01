# SPDX-License-Identifier: Apache-2.0
"""FP32 weights, autocast in fp16 and a GradScaler, with unscale_ before clipping: the recipe of PyTorch's notes."""
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
for _ in range(2):
    for _ in range(20):
        x = torch.randn(32, 16)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(net(x), x[:, :8])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
