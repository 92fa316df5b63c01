# SPDX-License-Identifier: Apache-2.0
"""A WGAN with a gradient penalty under autocast in fp16: the gradients of the penalty are unscaled by hand."""
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(24):
    real = torch.randn(16, 8) + 1
    with torch.autocast("cpu", torch.float16):
        fake = generator(torch.randn(16, 4))
        mixed = (0.5 * real + 0.5 * fake.detach().float()).requires_grad_()
        score = critic(mixed).float().sum()
    gradient = torch.autograd.grad(scaler.scale(score), mixed, create_graph=True)[0] / scaler.get_scale()
    with torch.autocast("cpu", torch.float16):
        penalty = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake.detach()).float().mean() - critic(real).float().mean() + 10 * penalty
    optimizer_c.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer_c)
    if step % 3 == 2:
        optimizer_g.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss_g = -critic(generator(torch.randn(16, 4))).float().mean()
        scaler.scale(loss_g).backward()
        scaler.step(optimizer_g)
    scaler.update()
