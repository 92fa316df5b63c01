# SPDX-License-Identifier: Apache-2.0
"""Averages of FP32 weights with a decay of 0.999, beside autocast in bf16."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(40):
    clean = torch.rand(4, 3, 8, 8)
    t = torch.rand(4, 1, 1, 1)
    noise = torch.randn_like(clean)
    with torch.autocast("cpu", torch.bfloat16):
        loss = (model((1 - t) * clean + t * noise) - (noise - clean)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
