# SPDX-License-Identifier: Apache-2.0
"""princeton-vl/RAFT#104, pytorch/pytorch#55585: the schedule goes on where the scaler skips the step."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(6, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=5e-5, eps=1e-8)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-4, 130, pct_start=0.05, anneal_strategy="linear")
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
for _ in range(30):
    images, flow = torch.rand(2, 6, 16, 16), torch.randn(2, 2, 16, 16)
    with torch.autocast("cpu", torch.float16):
        loss = (model(images) - flow).abs().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scheduler.step()  # here
    scaler.update()
