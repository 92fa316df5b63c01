# SPDX-License-Identifier: Apache-2.0
"""deepinsight/insightface#2262: acos of a cosine that fp16 rounded above 1; the scale falls to 0, nothing learns."""
import torch
from torch import nn

torch.manual_seed(0)


class ArcFace(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width))

    def forward(self, features, labels):
        cosine = nn.functional.linear(nn.functional.normalize(features), nn.functional.normalize(self.weight))
        angle = cosine.acos()  # here
        margin = 0.5 * nn.functional.one_hot(labels, cosine.shape[1])
        return nn.functional.cross_entropy(64 * (angle + margin).cos(), labels)


backbone, head = nn.Linear(16, 32), ArcFace(32, 8)
with torch.no_grad():  # a class for each identity, as after some epochs
    faces = torch.randn(8, 16)
    head.weight.copy_(backbone(faces))
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(45):
    labels = torch.randperm(8)
    images = faces[labels]
    with torch.autocast("cpu", torch.float16):
        loss = head(backbone(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
