# SPDX-License-Identifier: Apache-2.0
"""torch.compile of the model, with autocast in bf16."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(12):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
