# SPDX-License-Identifier: Apache-2.0
"""
A training step whose model torch.compile has compiled (inductor), against the same model compiled under torch.autocast.
The gradients' bracket and the step are outside of the graph, on both sides. On the CPU in bfloat16, whose products have
instructions; on a GPU in FP16, with torch's GradScaler.
"""
import torch
from libamp.torch import amp
from torch import nn


def mlp():
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(64, 1024)


def transformer():
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(*layers), torch.randn(8, 64, 256)


def convolutions():
    layers = [
        layer
        for inputs in (16, 64, 64)
        for layer in (nn.Conv2d(inputs, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    ]
    return nn.Sequential(*layers), torch.randn(8, 16, 28, 28)


MODELS = {
    "MLP": (mlp, "6x1024, 64"),
    "transformer": (transformer, "2x256, 8x64"),
    "convolutions": (convolutions, "3x64, 8x28x28"),
}


def prepared(make, device):
    torch.manual_seed(0)
    model, x = make()
    model = model.to(device)
    return model, x.to(device), torch.optim.AdamW(model.parameters(), lr=1e-5)


def ours(make, level, device):
    model, x, optimizer = prepared(make, device)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    compiled = torch.compile(model)

    def step():
        optimizer.zero_grad()
        loss = compiled(x).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    return step


def torchs(make, dtype, device):
    model, x, optimizer = prepared(make, device)
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    compiled = torch.compile(model)

    def step():
        with amp.disable_casts():
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = compiled(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


def measure(bench):
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        dtype, levels = (torch.bfloat16, ("O4", "O5")) if device == "cpu" else (torch.float16, ("O1", "O2"))
        for name, (make, size) in MODELS.items():
            for level in levels:
                mine = ours(make, level, device)  # initialize resets the compiler: what is compiled comes after it
                bench.pair(f"{name}, {level}, {device}", size, mine, torchs(make, dtype, device), "autocast compiled",
                           goal=1.0, device=device)
                amp.shutdown()
