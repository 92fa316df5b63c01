# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of a large embedding with SparseAdam, the rest with Adam: most rows are never seen."""
import torch
from torch import nn

torch.manual_seed(0)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(5000, 16, sparse=True), nn.EmbeddingBag(5000, 16, sparse=True)
        self.top = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, users, items):
        return self.top(torch.cat([self.users(users), self.items(items)], -1)).squeeze(-1)


model = Recommender()
sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=1e-2)
dense = torch.optim.Adam(model.top.parameters(), lr=1e-3)
for _ in range(25):
    users, items, clicks = torch.randint(0, 5000, (16,)), torch.randint(0, 5000, (16, 4)), torch.rand(16).round()
    loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), clicks)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
