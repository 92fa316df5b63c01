# SPDX-License-Identifier: Apache-2.0
"""A DCGAN: two networks, two optimizers, a backward of the discriminator's loss in two parts."""
import torch
from torch import nn


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


torch.manual_seed(0)
generator = nn.Sequential(
    nn.ConvTranspose2d(16, 16, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh()).apply(weights_init)
discriminator = nn.Sequential(
    nn.Conv2d(3, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True), nn.Conv2d(16, 1, 4, bias=False), nn.Flatten(),
    nn.Sigmoid()).apply(weights_init)
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for _ in range(15):
    discriminator.zero_grad()
    real = torch.rand(8, 3, 8, 8) * 2 - 1
    criterion(discriminator(real), torch.ones(8, 1)).backward()
    fake = generator(torch.randn(8, 16, 1, 1))
    criterion(discriminator(fake.detach()), torch.zeros(8, 1)).backward()
    optimizer_d.step()
    generator.zero_grad()
    criterion(discriminator(fake), torch.ones(8, 1)).backward()
    optimizer_g.step()
