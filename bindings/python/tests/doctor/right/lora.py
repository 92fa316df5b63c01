# SPDX-License-Identifier: Apache-2.0
"""LoRA: a frozen base in bf16, adapters in FP32. B begins at 0, so that A's first gradient is 0."""
import math

import torch
from torch import nn

torch.manual_seed(0)


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        low = (x.float() @ self.lora_A.T @ self.lora_B.T) * self.scaling
        return self.base(x) + low.to(x.dtype)


base = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 50))
model = base.to(torch.bfloat16).requires_grad_(False)
model[1], model[3] = LoRALinear(model[1]), LoRALinear(model[3])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
for _ in range(30):
    tokens = torch.randint(0, 50, (4, 12))
    loss = nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.roll(-1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
