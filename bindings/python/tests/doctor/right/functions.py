# SPDX-License-Identifier: Apache-2.0
"""Functions of the user's with custom_fwd, in FP32 and as autocast says, under fp16 with a scaler."""
import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd


class Energy(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum(-1, keepdim=True)

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


torch.manual_seed(0)
up, out = nn.Linear(16, 64), nn.Linear(65, 1)
optimizer = torch.optim.SGD([*up.parameters(), *out.parameters()], lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for _ in range(20):
    x = torch.randn(16, 16)
    with torch.autocast("cpu", torch.float16):
        hidden = up(x)
        y = out(torch.cat([Energy.apply(hidden) / 64, StraightThrough.apply(hidden).float()], -1))
    loss = nn.functional.mse_loss(y.float(), x.pow(2).mean(-1, keepdim=True))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
