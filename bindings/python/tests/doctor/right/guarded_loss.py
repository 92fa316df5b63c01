# SPDX-License-Identifier: Apache-2.0
"""A detector that leaves out a batch whose loss is not finite (an empty image), and adds up several losses."""
import math

import torch
from torch import nn

torch.manual_seed(0)
backbone, boxes, classes = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 3)
params = [p for m in (backbone, boxes, classes) for p in m.parameters()]
optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=5e-4)
for step in range(30):
    count = 0 if step == 11 else 6
    x, y, target = torch.randn(count, 16), torch.randint(0, 3, (count,)), torch.rand(count, 4)
    features = backbone(x).relu()
    loss = nn.functional.cross_entropy(classes(features), y) + nn.functional.smooth_l1_loss(boxes(features), target)
    if not math.isfinite(loss.item()):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
