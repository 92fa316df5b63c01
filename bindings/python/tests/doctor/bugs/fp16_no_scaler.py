# SPDX-License-Identifier: Apache-2.0
"""engichang1467/Open-Rig3R#35: autocast in fp16 without a GradScaler, and a loss of millions of pixels."""
import torch
from torch import nn

torch.manual_seed(0)


class Rig(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.points = nn.Linear(16, 32), nn.Linear(32, 1024)

    def forward(self, images):
        return self.points(nn.functional.gelu(self.body(images)))


model = Rig()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(30):
    images, rays = torch.randn(64, 16), 1e-4 * torch.randn(64, 1024)
    with torch.autocast("cpu", torch.float16):  # here
        loss = ((1e-3 * model(images) - rays) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
