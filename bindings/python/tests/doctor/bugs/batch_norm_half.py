# SPDX-License-Identifier: Apache-2.0
"""fastai/fastai#507: .half() takes the batch norms and their running statistics along."""
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


model = Net().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for _ in range(15):
    x, y = torch.rand(8, 3, 8, 8).half(), torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    (loss * 128).backward()
    for p in model.parameters():
        p.grad.div_(128)
    optimizer.step()
