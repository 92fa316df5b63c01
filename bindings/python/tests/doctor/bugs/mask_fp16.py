# SPDX-License-Identifier: Apache-2.0
"""NVIDIA/apex#93, facebookresearch/fairseq#3575: a mask of -1e9 is -inf in fp16, and a row of padding NaN."""
import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, padding):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 8
        scores = scores + padding[:, None].to(scores.dtype) * -1e9  # here
        return scores.softmax(-1).to(x.dtype) @ self.v(x)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.out = nn.Embedding(40, 64), Attention(64), nn.Linear(64, 40)

    def forward(self, tokens, padding):
        return self.out(self.attention(self.embed(tokens), padding))


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    tokens = torch.randint(1, 40, (4, 12))
    padding = torch.arange(12) >= torch.tensor([12, 9, 5, 0])[:, None]  # the last one is empty
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(tokens, padding).float().flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
