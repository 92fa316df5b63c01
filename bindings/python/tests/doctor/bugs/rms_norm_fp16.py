# SPDX-License-Identifier: Apache-2.0
"""pytorch/pytorch#134106: squares of a norm by hand exceed fp16; it answers 0, and nothing before it learns."""
import torch
from torch import nn

torch.manual_seed(0)


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight.to(x.dtype)  # here


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.out = nn.Linear(16, 64), RMSNorm(64), nn.Linear(64, 4)
        nn.init.normal_(self.up.weight, std=200.0)

    def forward(self, x):
        return self.out(self.norm(self.up(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(20):
    x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
