# SPDX-License-Identifier: Apache-2.0
"""prs-eth/Marigold#111: NaN comes in with the batch, where the depth sensor saw nothing."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rooms(Dataset):
    def __init__(self):
        made = torch.Generator().manual_seed(0)
        self.images, self.depths = torch.rand(64, 3, 8, 8, generator=made), torch.rand(64, 1, 8, 8, generator=made)
        self.depths[37, 0, 2, 3] = float("nan")

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"rgb": self.images[i], "depth": self.depths[i]}


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for batch in DataLoader(Rooms(), batch_size=4):
    loss = nn.functional.mse_loss(model(batch["rgb"]), batch["depth"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
