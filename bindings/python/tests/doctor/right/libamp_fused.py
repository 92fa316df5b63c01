# SPDX-License-Identifier: Apache-2.0
"""libamp's fused Adam with bf16 weights and FP32 masters at O5, and a schedule."""
import torch
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdam
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(40, 32), nn.LayerNorm(32), nn.Linear(32, 40))
optimizer = FusedAdam(model.parameters(), lr=1e-4)
model, optimizer = amp.initialize(model, optimizer, opt_level="O5", verbosity=0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
for _ in range(30):
    tokens = torch.randint(0, 40, (4, 8))
    loss = nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    scheduler.step()
