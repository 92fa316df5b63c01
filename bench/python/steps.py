# SPDX-License-Identifier: Apache-2.0
"""
A whole training step of a ResNet block and of a transformer block, against torch.amp. On the CPU in bfloat16 (its FP16
convolutions take many times as long as FP32's), on a GPU in FP16.
"""
import torch
from libamp.torch import amp
from sides import ours, torchs
from torch import nn


class ResNetBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + x)


def resnet(device):
    return ResNetBlock(64).to(device), torch.randn(8, 64, 28, 28, device=device)


def transformer(device):
    block = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return block.to(device), torch.randn(8, 64, 256, device=device)


BLOCKS = {"ResNet block": (resnet, "8x64x28x28"), "transformer block": (transformer, "8x64x256")}


def made(make, device):
    model, x = make(device)
    return model, x, torch.optim.AdamW(model.parameters(), lr=1e-5)


def measure(bench):
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        cpu = device == "cpu"
        dtype = torch.bfloat16 if cpu else torch.float16
        for name, (make, size) in BLOCKS.items():
            for level in ("O4", "O5") if cpu else ("O1", "O2"):
                goal = 1.0 if level in ("O1", "O4") else 0.0 if cpu else 1 / 0.87
                mine, theirs = ours(*made(make, device), level), torchs(*made(make, device), dtype)
                bench.pair(f"{name}, {level}, {device}", size, mine, theirs, "torch.amp", goal=goal, device=device)
                amp.shutdown()
