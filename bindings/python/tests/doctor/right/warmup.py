# SPDX-License-Identifier: Apache-2.0
"""A warmup that begins at a rate of 0 and lasts for the whole of a short run; weights hardly move, in FP32."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 2000)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2000])
for _ in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
