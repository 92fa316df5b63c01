# SPDX-License-Identifier: Apache-2.0
"""Two towers with a learned temperature that is clamped, products in bf16, exp and softmax in FP32."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(24, 16), nn.EmbeddingBag(50, 16)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        a, b = F.normalize(self.image(images).float(), dim=-1), F.normalize(self.text(texts).float(), dim=-1)
        return self.logit_scale.float().exp() * a @ b.T


model = CLIP()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
for _ in range(25):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(8, 24), torch.randint(0, 50, (8, 6))).float()
    labels = torch.arange(8)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
