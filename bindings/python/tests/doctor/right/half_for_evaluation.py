# SPDX-License-Identifier: Apache-2.0
"""FP32 training; every ten steps a copy in fp16 is evaluated and saved."""
import copy
import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    model.train()
    loss = nn.functional.cross_entropy(model(torch.rand(8, 1, 8, 8)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        half = copy.deepcopy(model).half().eval()
        with torch.no_grad():
            half(torch.rand(4, 1, 8, 8).half())
        torch.save(half.state_dict(), io.BytesIO())
