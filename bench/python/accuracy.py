# SPDX-License-Identifier: Apache-2.0
"""
Errors on the digits' test images after a training at O4 with activations in 4 and 2 bits, beside the same without: mean
and standard deviation over seeds, of a ResNet-18 and of the transformer of examples/python. It takes some minutes.
"""
import pathlib
import statistics
import sys

import torch
from libamp.torch import amp
from torch import nn
from training_steps.cpu import resnet18

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import load
from transformer import Reader


class Rows(nn.Module):
    """Images as the Reader's words."""

    def __init__(self):
        super().__init__()
        self.reader = Reader()

    def forward(self, images):
        return self.reader(images[:, 0])


class Coloured(nn.Module):
    """A ResNet-18 for 32 x 32 pixels in three colours, over 8 x 8 in one."""

    def __init__(self, width=64):
        super().__init__()
        self.net, _ = resnet18(1, width)

    def forward(self, images):
        return self.net(images.expand(-1, 3, -1, -1))


MODELS = {"ResNet-18": (Coloured, 6, 1e-3), "transformer": (Rows, 20, 3e-3)}


def error(make, epochs, rate, bits, seed, batch=64):
    """Of 100 test images, how many are not told."""
    torch.manual_seed(seed)
    images, labels = load(train=True)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O4", verbosity=0)
    if bits:
        amp.compress_activations(model, bits)
    steps = epochs * -(-len(labels) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / steps))
    for _ in range(epochs):
        for at in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            with amp.scale_loss(nn.functional.cross_entropy(model(images[at]).float(), labels[at]), optimizer) as loss:
                loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    images, labels = load(train=False)
    with torch.no_grad():
        wrong = (model(images).argmax(1) != labels).float().mean().item()
    amp.shutdown()
    return 100 * wrong


def measure(bench):
    trial = bench.rounds == 1
    for name, (make, epochs, rate) in list(MODELS.items())[1 if trial else 0 :]:
        found = {}
        for bits in (None, 4) if trial else (None, 4, 2):
            found[bits] = [error(make, 1 if trial else epochs, rate, bits, seed) for seed in range(2 if trial else 5)]
            mean, exact = (max(statistics.mean(found[key]), 1e-3) for key in (bits, None))
            spread, exact_spread = (statistics.stdev(found[key]) for key in (bits, None))
            bench.amounts(f"{name}, {f'{bits} bits' if bits else 'O4'}, ± {spread:.2f}", f"{len(found[bits])} seeds",
                          "%", mean, exact, f"O4, ± {exact_spread:.2f}")
