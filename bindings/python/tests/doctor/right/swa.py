# SPDX-License-Identifier: Apache-2.0
"""Stochastic weight averaging with its own schedule; batch norms are updated at the end."""
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = DataLoader(TensorDataset(torch.randn(40, 8), torch.randn(40, 2)), 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged, swa_scheduler = AveragedModel(model), SWALR(optimizer, swa_lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
for epoch in range(6):
    for x, y in rows:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if epoch > 3:
        averaged.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(rows, averaged)
