# SPDX-License-Identifier: Apache-2.0
"""torch.compile of forward, backward's loss and the optimizer's step each, FP32."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@torch.compile(backend="aot_eager")
def forward(x, y):
    return nn.functional.cross_entropy(model(x), y)


@torch.compile(backend="aot_eager")
def update():
    optimizer.step()


for _ in range(12):
    optimizer.zero_grad()
    forward(torch.randn(8, 16), torch.randint(0, 4, (8,))).backward()
    update()
