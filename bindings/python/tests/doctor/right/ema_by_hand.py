# SPDX-License-Identifier: Apache-2.0
"""Mean teacher: an FP32 copy that follows by lerp_, gets no gradients and is never in an optimizer."""
import copy

import torch
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
for _ in range(40):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    logits = student(x + 0.1 * torch.randn_like(x))
    consistency = nn.functional.mse_loss(logits.softmax(-1), teacher(x).softmax(-1))
    loss = nn.functional.cross_entropy(logits, y) + consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for ours, theirs in zip(teacher.parameters(), student.parameters()):
            ours.lerp_(theirs, 0.01)
