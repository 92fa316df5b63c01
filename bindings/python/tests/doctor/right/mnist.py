# SPDX-License-Identifier: Apache-2.0
"""A CNN for digits with Adadelta, dropout and a schedule for each epoch (as in PyTorch's examples), FP32."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16 * 25, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


torch.manual_seed(1)
digits = TensorDataset(torch.rand(64, 1, 14, 14), torch.randint(0, 10, (64,)))
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
for _ in range(3):
    model.train()
    for data, target in DataLoader(digits, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        F.nll_loss(model(data), target).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(data).argmax(1) == target).sum().item() for data, target in DataLoader(digits, 32))
    scheduler.step()
