# SPDX-License-Identifier: Apache-2.0
"""A variational autoencoder: exp of a log-variance and a sum over pixels, in FP32."""
import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.logvar = nn.Linear(64, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.fc3, self.fc4 = nn.Linear(8, 32), nn.Linear(32, 64)

    def forward(self, x):
        hidden = F.relu(self.fc1(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


torch.manual_seed(1)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(20):
    x = torch.rand(16, 64)
    recon, mu, logvar = model(x)
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    optimizer.zero_grad()
    (bce + kld).backward()
    optimizer.step()
