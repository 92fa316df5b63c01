# SPDX-License-Identifier: Apache-2.0
"""d8ahazard/sd_dreambooth_extension#1415: an average of 16-bit weights in 16 bits stands still."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
unet = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16)).to(torch.bfloat16)
ema_model = AveragedModel(unet, multi_avg_fn=get_ema_multi_avg_fn(0.9999))
masters = [p.detach().float() for p in unet.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-3)
for _ in range(60):
    noise = torch.randn(32, 16, dtype=torch.bfloat16)
    loss = (unet(noise).float() - 2 * noise.float()).pow(2).mean()
    unet.zero_grad()
    loss.backward()
    for master, p in zip(masters, unet.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, unet.parameters()):
            p.copy_(master)
    ema_model.update_parameters(unet)  # here
