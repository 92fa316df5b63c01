# SPDX-License-Identifier: Apache-2.0
"""huggingface/transformers#5651: the second product of T5's feed-forward exceeds 65504."""
import torch
from torch import nn

torch.manual_seed(0)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


class DenseReluDense(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wi, self.wo = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for weight in (self.wi.weight, self.wo.weight):
            nn.init.normal_(weight, std=40.0)  # trained in bf16, where this was harmless

    def forward(self, x):
        return self.wo(nn.functional.relu(self.wi(x)))  # here


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.ff, self.final = nn.Embedding(40, 64), Norm(64), DenseReluDense(64), Norm(64)
        self.head = nn.Linear(64, 40)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.final(x + self.ff(self.norm(x))))


model = T5()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    tokens = torch.randint(0, 40, (4, 12))
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
