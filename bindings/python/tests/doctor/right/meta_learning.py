# SPDX-License-Identifier: Apache-2.0
"""MAML in the small: inner steps by torch.autograd.grad and functional_call, one optimizer outside."""
import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
meta = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(15):
    meta.zero_grad()
    for _ in range(3):
        phase, x = torch.rand(1) * 3, torch.rand(20, 1) * 6 - 3
        y = torch.sin(x + phase)
        weights = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, weights, x[:10]), y[:10])
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        weights = {name: w - 0.01 * g for (name, w), g in zip(weights.items(), grads)}
        nn.functional.mse_loss(functional_call(model, weights, x[10:]), y[10:]).div(3).backward()
    meta.step()
