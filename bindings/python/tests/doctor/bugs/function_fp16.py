# SPDX-License-Identifier: Apache-2.0
"""pytorch/pytorch#47906: a Function without custom_fwd gets what autocast made, and sums squares in fp16."""
import torch
from torch import nn
from torch.autograd import Function

torch.manual_seed(0)


class Energy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum(-1)  # here

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad.unsqueeze(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.out = nn.Linear(16, 128), nn.Linear(1, 1)
        nn.init.normal_(self.up.weight, std=12.0)

    def forward(self, x):
        return self.out(Energy.apply(self.up(x)).unsqueeze(-1).float() * 1e-5)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    x = torch.randn(32, 16)
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.mse_loss(model(x).squeeze(-1).float(), x.pow(2).sum(-1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
