# SPDX-License-Identifier: Apache-2.0
"""A residual network with batch norm, SGD with momentum, a schedule by milestones, channels last, FP32."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        nn.init.zeros_(self.bn2.weight)  # the block begins as its shortcut

    def forward(self, x):
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + self.shortcut(x)).relu()


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, 1, 1), Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(16, 10)).to(memory_format=torch.channels_last)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.SGD(
    [{"params": decay, "weight_decay": 1e-4}, {"params": rest}], lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 14], 0.1)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(18):
    images = torch.rand(8, 3, 12, 12).contiguous(memory_format=torch.channels_last)
    loss = criterion(model(images), torch.randint(0, 10, (8,)))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
