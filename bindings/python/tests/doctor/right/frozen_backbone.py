# SPDX-License-Identifier: Apache-2.0
"""Transfer: a frozen backbone in evaluation mode and fp16, a new FP32 head; then one block is thawed as a new group."""
import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
backbone.eval().requires_grad_(False)
neck, head = nn.Linear(8, 16).requires_grad_(False), nn.Linear(16, 5)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
for step in range(30):
    if step == 15:
        optimizer.add_param_group({"params": list(neck.requires_grad_().parameters()), "lr": 1e-3})
    with torch.no_grad():
        features = backbone(torch.rand(8, 3, 8, 8))
    loss = nn.functional.cross_entropy(head(neck(features).relu()), torch.randint(0, 5, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
