# SPDX-License-Identifier: Apache-2.0
"""Many units of ReLU are off, experts idle and dropout is strong: zeros that no type made, under fp16 with a scaler."""
import torch
from torch import nn

torch.manual_seed(0)


class Experts(nn.Module):
    def __init__(self, width=16, count=8):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
                                     for _ in range(count))
        for expert in self.experts:
            nn.init.constant_(expert[0].bias, -1.0)

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = chosen == i
            if rows.any():
                out[rows] = (expert(x[rows]) * weight[rows, None]).to(out.dtype)
        return x + out


model = nn.Sequential(Experts(), nn.Dropout(0.5), Experts(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(30):
    x, y = torch.randn(6, 16), torch.randint(0, 4, (6,))
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
