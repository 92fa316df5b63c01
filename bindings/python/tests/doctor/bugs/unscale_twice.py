# SPDX-License-Identifier: Apache-2.0
"""huggingface/transformers#24449, Haian-Jin/LVSM#19: unscale_ again after a step that the script left out."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(12):
    x = torch.randn(16, 16) * (100.0 if step == 9 else 1.0)
    with torch.autocast("cpu", torch.float16):
        loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # here
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm < 5.0:
        scaler.step(optimizer)
        scaler.update()
