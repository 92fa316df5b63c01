# SPDX-License-Identifier: Apache-2.0
"""EleutherAI/gpt-neox#1003: model.to(bf16) rounds inv_freq too, and distant positions turn by wrong angles."""
import torch
from torch import nn

torch.manual_seed(0)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, x):
        t = torch.arange(x.shape[1]).type_as(self.inv_freq)
        angles = torch.outer(t, self.inv_freq)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rotary = nn.Embedding(40, 32), RotaryEmbedding(32)
        self.q, self.k, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 40)

    def forward(self, tokens):
        x = self.embed(tokens)
        weights = (self.rotary(self.q(x)) @ self.rotary(self.k(x)).transpose(1, 2) / 6).softmax(-1)
        return self.out(weights @ x)


model = Model().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(12):
    tokens = torch.randint(0, 40, (1, 512))
    loss = nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
