# SPDX-License-Identifier: Apache-2.0
"""afiaka87/glide-finetune#5: Adam's 1e-8 is 0 in fp16, so the first update divides by 0."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)  # here
for _ in range(10):
    x = torch.randn(64, 16).half()
    loss = (model(x).float() - x.float()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
