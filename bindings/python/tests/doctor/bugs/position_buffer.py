# SPDX-License-Identifier: Apache-2.0
"""InternLM/InternLM#237: positions are a buffer, which follows the model into bf16: 256 and 257 are one."""
import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self, length=512):
        super().__init__()
        self.register_buffer("positions", torch.arange(float(length)), persistent=False)
        self.scale, self.net = nn.Linear(1, 32), nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        place = self.scale(self.positions[:, None] / len(self.positions)).expand(x.shape[0], -1, -1)
        return self.net(torch.cat([x, place], -1))


model = Encoder().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    x = torch.randn(2, 512, 16, dtype=torch.bfloat16)
    loss = (model(x).float().squeeze(-1) - torch.arange(512.0) / 512).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
