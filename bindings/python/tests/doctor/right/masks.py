# SPDX-License-Identifier: Apache-2.0
"""Masks of -inf and of the type's lowest number, in fp16 under a scaler, no row wholly masked."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 6
        scores = scores.masked_fill(padding[:, None], torch.finfo(scores.dtype).min)
        hidden = x + self.out(scores.softmax(-1).to(v.dtype) @ v)
        future = torch.full(scores.shape[1:], float("-inf"), dtype=q.dtype).triu(1)
        return hidden + F.scaled_dot_product_attention(q, k, v, attn_mask=future)


embed, attention, head = nn.Embedding(30, 32), Attention(), nn.Linear(32, 30)
optimizer = torch.optim.Adam([p for m in (embed, attention, head) for p in m.parameters()], lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
for _ in range(25):
    tokens = torch.randint(0, 30, (4, 10))
    padding = torch.arange(10) >= torch.randint(3, 11, (4, 1))
    with torch.autocast("cpu", torch.float16):
        logits = head(attention(embed(tokens), padding))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.masked_fill(padding, -100).flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
