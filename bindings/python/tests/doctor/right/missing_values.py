# SPDX-License-Identifier: Apache-2.0
"""A table with missing values: NaN in the batch, which the model replaces, as it should."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.missing = nn.Parameter(torch.zeros(12))
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(torch.where(x.isnan(), self.missing, x)).squeeze(-1)


table = torch.randn(160, 12)
table[torch.rand_like(table) < 0.1] = float("nan")
model = Tabular()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in DataLoader(TensorDataset(table, torch.randn(160)), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    nn.functional.huber_loss(model(x), y).backward()
    optimizer.step()
