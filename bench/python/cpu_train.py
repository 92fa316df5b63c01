# SPDX-License-Identifier: Apache-2.0
"""
Whole training steps on the CPU in bfloat16, forward, backward and AdamW, beside torch.autocast: what its user would
write, with torch's default AdamW and with its fused one, and FP32. The references run with all of libamp switched off.
"""
import itertools

import torch
from libamp.torch import amp
from libamp.torch.optimizers import FusedAdam
from sides import ours, torchs
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        shrink = [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.shortcut = nn.Sequential(*shrink) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x):
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(256, 256, 2, batch_first=True), nn.Linear(256, 256)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def mlp(batch):
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), torch.randn(batch, 1024)


def transformer(batch):
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(batch, 64, 512)


def classifier(*layers, channels):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def convolutions(batch):
    sizes = [(3, 32, 1), (32, 64, 2), (64, 64, 1)]
    layers = [layer for i, o, stride in sizes for layer in (nn.Conv2d(i, o, 3, stride, 1), nn.ReLU())]
    return classifier(*layers, channels=64), torch.randn(batch, 3, 32, 32)


def resnet18(batch):
    sizes = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [ResidualBlock(i, o, 1 + (i < o)) for i, o in itertools.pairwise(sizes)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return classifier(*stem, *blocks, channels=512), torch.randn(batch, 3, 32, 32)


def recurrent(batch):
    return Recurrent(), torch.randn(batch, 32, 256)


MODELS = {
    "MLP, 6 layers": (mlp, 64),
    "transformer, 4 layers": (transformer, 8),
    "3 convolutions": (convolutions, 16),
    "ResNet-18": (resnet18, 4),
    "LSTM, 2 layers": (recurrent, 16),
}


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5)


def torchs_fused(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def fused_adam(parameters):
    return FusedAdam(parameters, lr=1e-5, weight_decay=0.01)


def made(make, batch, choose):
    model, x = make(batch)
    return model, x, choose(model.parameters())


OURS = {"O4": ("O4", adamw, 1.0), "O5": ("O5", adamw, 1.1), "O5, FusedAdam": ("O5", fused_adam, 1.2)}


def measure(bench):
    trial = bench.rounds == 1  # does it run? A line of each model, in turn
    for i, (name, (make, batch)) in enumerate(MODELS.items()):
        batch = 1 if trial else batch
        for what, (level, choose, goal) in list(OURS.items())[i % 3 if trial else 0 :][: 1 if trial else None]:
            references = {
                "autocast": (torchs(*made(make, batch, adamw)), goal),
                "autocast, AdamW(fused=True)": (torchs(*made(make, batch, torchs_fused)), 0.0),
                "FP32": (torchs(*made(make, batch, adamw), torch.float32), 0.0),
            }
            mine = ours(*made(make, batch, choose), level)
            bench.turns(f"{name}, {what}", f"batch {batch}", mine, references)
            amp.shutdown()
