# SPDX-License-Identifier: Apache-2.0
"""Every optimizer of torch.optim that takes dense gradients, foreach and fused where there are such."""
import torch
from torch import nn

KINDS = [
    (torch.optim.Adagrad, {"lr": 0.05}), (torch.optim.Adamax, {}), (torch.optim.ASGD, {}), (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}), (torch.optim.Rprop, {}), (torch.optim.Adafactor, {}), (torch.optim.RMSprop, {}),
    (torch.optim.Adam, {"foreach": True}), (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"lr": 0.1, "fused": True}),
]
for kind, options in KINDS:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = kind(model.parameters(), **options)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 2)).backward()
        optimizer.step()
