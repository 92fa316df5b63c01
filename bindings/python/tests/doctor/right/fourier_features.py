# SPDX-License-Identifier: Apache-2.0
"""Random Fourier features and positions as FP32 buffers, which autocast in bf16 leaves alone."""
import torch
from torch import nn

torch.manual_seed(0)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 10 * torch.randn(2, 16))
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 16, 2) / 16))
        self.register_buffer("positions", torch.arange(1024.0))
        self.net = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, where, index):
        angles = where @ self.frequencies
        turns = self.positions[index][:, None] * self.inv_freq
        return self.net(torch.cat([angles.sin(), angles.cos(), turns.sin(), turns.cos()], -1))


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
for _ in range(25):
    with torch.autocast("cpu", torch.bfloat16):
        colours = field(torch.rand(64, 2), torch.randint(0, 1024, (64,)))
    loss = nn.functional.mse_loss(colours.float(), torch.rand(64, 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
