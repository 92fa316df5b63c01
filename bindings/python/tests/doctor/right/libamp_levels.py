# SPDX-License-Identifier: Apache-2.0
"""libamp itself: the same network at each level, with its brackets."""
import torch
from libamp.torch import amp
from torch import nn

for level in ("O0", "O1", "O2", "O3", "O4", "O5"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if level == "O3" else 0.01, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for _ in range(20):
        x, y = torch.randn(16, 16), torch.randint(0, 4, (16,))
        loss = nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
    amp.shutdown()
