# SPDX-License-Identifier: Apache-2.0
"""In the manner of nanoGPT: bf16 autocast, accumulation, clipping, weight decay by dimension, a cosine by hand."""
import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab=65, block=24, width=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.h = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


dtype = globals().get("DTYPE", "bfloat16")
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast("cpu", getattr(torch, dtype))
scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
model, data = GPT(), torch.randint(0, 65, (4096,))
optimizer = torch.optim.AdamW(
    [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
     {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}],
    lr=6e-4, betas=(0.9, 0.95))
warmup, iterations, accumulation = 4, 24, 2
for it in range(iterations):
    ratio = (it + 1) / warmup if it < warmup else 0.55 + 0.45 * math.cos(math.pi * (it - warmup) / iterations)
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * ratio
    for _ in range(accumulation):
        ix = torch.randint(len(data) - 24, (8,))
        x, y = torch.stack([data[i:i + 24] for i in ix]), torch.stack([data[i + 1:i + 25] for i in ix])
        with ctx:
            logits, loss = model(x, y)
            loss = loss / accumulation
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
