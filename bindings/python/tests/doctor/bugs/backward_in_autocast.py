# SPDX-License-Identifier: Apache-2.0
"""silvandeleemput/memcnn#57: backward inside autocast; a Function's products there are rounded once more."""
import torch
from torch import nn

torch.manual_seed(0)


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        a, b = x.chunk(2, -1)
        a = a + self.f(b)
        return torch.cat([a, b + self.g(a)], -1)


model = nn.Sequential(Coupling(), Coupling(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(15):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # here
    scaler.step(optimizer)
    scaler.update()
