# SPDX-License-Identifier: Apache-2.0
"""scale_loss around a backward of no work, and the step, against GradScaler's unscale_, step and update; 200
tensors."""
import torch
from libamp.torch import amp
from torch import nn

SIZES = {"200 x 64": 64, "200 x 4096": 4096}


def make(size, device):
    model = nn.Module()
    model.params = nn.ParameterList([nn.Parameter(torch.ones(size, device=device)) for _ in range(200)])
    return model, torch.optim.SGD(model.parameters(), lr=0.0, foreach=True)


def pair_of(size, device):
    """Two functions that put the same gradients there and go on from them."""
    gradients = [torch.full((size,), 1.0, device=device) for _ in range(200)]
    one = torch.ones((), device=device)
    model, optimizer = make(size, device)
    amp.initialize(model, optimizer, opt_level="O0", loss_scale="dynamic", verbosity=0)
    other, other_optimizer = make(size, device)
    scaler = torch.amp.GradScaler(device)

    def give(params):
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient

    def ours():
        optimizer.zero_grad()
        with amp.scale_loss(one, optimizer):
            give(model.params)
        optimizer.step()

    def theirs():
        other_optimizer.zero_grad()
        scaler.scale(one)
        give(other.params)
        scaler.unscale_(other_optimizer)
        scaler.step(other_optimizer)
        scaler.update()

    return ours, theirs


def measure(bench):
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        for name, size in SIZES.items():
            ours, theirs = pair_of(size, device)
            bench.pair(f"bracket and step, {device}", name, ours, theirs, "GradScaler", goal=1.0, device=device)
            amp.shutdown()
