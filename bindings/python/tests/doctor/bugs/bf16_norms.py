# SPDX-License-Identifier: Apache-2.0
"""vllm-project/speculators#765: trained wholly in bf16, the weights of the norms stay exactly 1."""
import torch
from torch import nn

torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


model = nn.Sequential(Layer(64), Layer(64), nn.RMSNorm(64), nn.Linear(64, 32)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
hidden = torch.randn(128, 64, dtype=torch.bfloat16)
tokens = torch.randint(0, 32, (128,))
for _ in range(40):
    loss = nn.functional.cross_entropy(model(hidden).float(), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
