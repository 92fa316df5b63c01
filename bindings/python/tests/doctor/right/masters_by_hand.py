# SPDX-License-Identifier: Apache-2.0
"""bf16 weights, whose FP32 masters the optimizer has: the copy rounds, the master does not."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 4)).to(torch.bfloat16)
masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-4, weight_decay=0.0)
for _ in range(30):
    x, y = torch.randn(16, 16, dtype=torch.bfloat16), torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(model(x).float(), y)
    model.zero_grad()
    loss.backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
