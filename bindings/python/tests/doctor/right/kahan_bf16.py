# SPDX-License-Identifier: Apache-2.0
"""bf16 weights with a compensation for each, as anyprecision optimizers have: small updates add up and arrive."""
import torch
from torch import nn


class KahanSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                rest = self.state[p].setdefault("compensation", torch.zeros_like(p, dtype=torch.float32))
                rest.sub_(p.grad.float(), alpha=group["lr"])
                moved = (p.float() + rest).to(p.dtype)
                rest.sub_(moved.float() - p.float())
                p.copy_(moved)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)).to(torch.bfloat16)
optimizer = KahanSGD(model.parameters(), lr=0.05)
for _ in range(80):
    x = torch.randn(32, 16, dtype=torch.bfloat16)
    loss = (model(x).float() - 3 * x.float()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
