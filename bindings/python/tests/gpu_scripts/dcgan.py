# SPDX-License-Identifier: Apache-2.0
"""In the style of Apex's DCGAN example: three losses, two optimizers, one device object."""
import argparse

import torch
from apex import amp
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--opt_level", default="O1")
opt = parser.parse_args()
torch.manual_seed(2809)
torch.backends.cudnn.benchmark = True
device = torch.device("cuda:0")
nz = 8


def weights_init(m):
    if m.__class__.__name__.find("Conv") != -1:
        m.weight.data.normal_(0.0, 0.02)


netG = nn.Sequential(nn.ConvTranspose2d(nz, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 1, 1), nn.Tanh())
netD = nn.Sequential(nn.Conv2d(1, 8, 4), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 1), nn.Flatten(0))
netG, netD = netG.to(device), netD.to(device)
netG.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
real_label, fake_label = 1, 0
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.02, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
[netD, netG], [optimizerD, optimizerG] = amp.initialize(
    [netD, netG], [optimizerD, optimizerG], opt_level=opt.opt_level, num_losses=3
)
errors = []
for _ in range(12):
    real = torch.ones(16, 1, 4, 4).to(device)
    netD.zero_grad()
    label = torch.full((16,), real_label, device=device, dtype=torch.float)
    errD_real = criterion(netD(real), label)
    with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
        errD_real_scaled.backward()
    fake = netG(torch.randn(16, nz, 1, 1, device=device))
    label.fill_(fake_label)
    errD_fake = criterion(netD(fake.detach()), label)
    with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
        errD_fake_scaled.backward()
    errors.append((errD_real + errD_fake).item())
    optimizerD.step()
    netG.zero_grad()
    label.fill_(real_label)
    errG = criterion(netD(fake), label)
    with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
        errG_scaled.backward()
    optimizerG.step()
print(f"loss {errors[0]:.4f} -> {errors[-1]:.4f}")
