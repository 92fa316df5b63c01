# SPDX-License-Identifier: Apache-2.0
"""
A training step whose model torch.compile has compiled (inductor), against the same model compiled under torch.autocast.
The gradients' bracket and the step are outside of the graph, on both sides. On the CPU in bfloat16, whose products have
instructions; on a GPU in FP16, with torch's GradScaler.
"""
import torch
from libamp.torch import amp
from sides import ours, torchs
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


def measure(bench):
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        dtype, levels = (torch.bfloat16, ("O4", "O5")) if device == "cpu" else (torch.float16, ("O1", "O2"))
        for name, (make, size) in MODELS.items():
            for level in levels:
                # initialize resets the compiler: what is compiled comes after it
                mine = ours(*prepared(make, device), level, torch.compile)
                theirs = torchs(*prepared(make, device), dtype, torch.compile)
                what = f"{name}, {level}, {device}"
                bench.pair(what, size, mine, theirs, "autocast compiled", goal=1.0, device=device)
                amp.shutdown()
