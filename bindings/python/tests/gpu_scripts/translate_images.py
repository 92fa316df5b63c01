# SPDX-License-Identifier: Apache-2.0
"""In the style of pix2pix: lists of models, a Tensor type that is the GPU's, Variables, gpu_ids."""
import argparse
import itertools

import torch
from apex import amp
from torch import nn
from torch.autograd import Variable

parser = argparse.ArgumentParser()
parser.add_argument("--gpu_ids", default="0")
parser.add_argument("--level", default="O1")
opt = parser.parse_args()
opt.gpu_ids = [int(i) for i in opt.gpu_ids.split(",") if int(i) >= 0]
torch.cuda.set_device(opt.gpu_ids[0])
Tensor = torch.cuda.FloatTensor if opt.gpu_ids else torch.FloatTensor
torch.manual_seed(0)


def init_net(net):
    assert torch.cuda.is_available()
    net.to(opt.gpu_ids[0])
    return net


G_A = init_net(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1)))
G_B = init_net(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)))
D = init_net(nn.Sequential(nn.Conv2d(1, 8, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8, 1)))
optimizer_G = torch.optim.Adam(itertools.chain(G_A.parameters(), G_B.parameters()), lr=0.02)
optimizer_D = torch.optim.Adam(D.parameters(), lr=0.002)
[G_A, G_B, D], [optimizer_G, optimizer_D] = amp.initialize(
    [G_A, G_B, D], [optimizer_G, optimizer_D], opt_level=opt.level, num_losses=2
)
input_A = Tensor(4, 1, 4, 4)
input_A.resize_(4, 1, 4, 4).copy_(torch.randn(4, 1, 4, 4))
valid, fake = Variable(Tensor(4, 1).fill_(1.0), requires_grad=False), Variable(Tensor(4, 1).fill_(0.0))
mse, losses = nn.MSELoss(), []
for _ in range(20):
    real = Variable(input_A)
    optimizer_G.zero_grad()
    image = G_A(real)
    loss_G = mse(D(image).float(), valid) + 10 * mse(G_B(image).float(), real)
    with amp.scale_loss(loss_G, optimizer_G, loss_id=0) as scaled:
        scaled.backward()
    optimizer_G.step()
    optimizer_D.zero_grad()
    loss_D = 0.5 * (mse(D(real).float(), valid) + mse(D(image.detach()).float(), fake))
    with amp.scale_loss(loss_D, optimizer_D, loss_id=1) as scaled:
        scaled.backward()
    optimizer_D.step()
    losses.append(loss_G.data.cpu().numpy().item())
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
