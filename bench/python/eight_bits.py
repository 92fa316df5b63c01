# SPDX-License-Identifier: Apache-2.0
"""
Errors on the digits' test images after a training with FusedAdam, moments in 8 bits beside FP32 ones: mean and standard
deviation over seeds, of an MLP and of the transformer of examples/python. It takes some minutes.
"""
import pathlib
import statistics
import sys

import torch
from accuracy import Rows
from libamp.torch.optimizers import FusedAdam
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import load


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(),
                         nn.Linear(128, 10))


MODELS = {"MLP": (mlp, 12, 2e-3), "transformer": (Rows, 20, 3e-3)}


def error(make, epochs, rate, bits, seed, batch=64):
    """Of 100 test images, how many are not told."""
    torch.manual_seed(seed)
    images, labels = load(train=True)
    model = make()
    optimizer = FusedAdam(model.parameters(), lr=rate, state_bits=bits, seed=seed)
    steps = epochs * -(-len(labels) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / steps))
    for _ in range(epochs):
        for at in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[at]), labels[at]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    images, labels = load(train=False)
    with torch.no_grad():
        return 100 * (model(images).argmax(1) != labels).float().mean().item()


def measure(bench):
    trial = bench.rounds == 1
    for name, (make, epochs, rate) in list(MODELS.items())[: 1 if trial else 2]:
        found = {}
        for bits in (32, 8):
            found[bits] = [error(make, 1 if trial else epochs, rate, bits, seed) for seed in range(2 if trial else 5)]
        mean, exact = (max(statistics.mean(found[bits]), 1e-3) for bits in (8, 32))
        spread, exact_spread = (statistics.stdev(found[bits]) for bits in (8, 32))
        bench.amounts(f"{name}, 8-bit moments, ± {spread:.2f}", f"{len(found[8])} seeds", "%", mean, exact,
                      f"FP32 moments, ± {exact_spread:.2f}")
