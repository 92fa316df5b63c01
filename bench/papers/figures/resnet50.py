# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 on a GPU: images a second and the most memory, in FP32, FP16 alone, O1, O2, O3 and autocast. It was never
run on one: experimental."""
from __future__ import annotations

from typing import Any

from ..figure import Budget, Data, Figure, Source, table
from ..svg import Axis, Picture, Plot, colour
from .rates import NAMES, modes

FIGURE = Figure(
    "resnet50", "ResNet-50 on a GPU",
    Source("two trainings of ResNet-50 that differ in their level alone take 8 h 42 min and 8 h 26 min.",
           {"one": "8 h 42 min", "the other": "8 h 26 min"},
           "a post on Apex's levels, quoted second-hand: its text was not found again. Apex's script: "
           "[examples/imagenet](https://github.com/NVIDIA/apex/tree/master/examples/imagenet)"),
    seconds=0, quick=0, cuda=90)
BATCH, WARM = 128, 5


def block(inputs: int, width: int, stride: int) -> Any:
    """Returns a bottleneck: 1 x 1, 3 x 3, 1 x 1, with its shortcut."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.path = nn.Sequential(
                nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
            same = stride == 1 and inputs == 4 * width
            self.short = nn.Identity() if same else nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
            self.last = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.last(self.path(x) + self.short(x))

    return Block()


def resnet50() -> Any:
    from torch import nn

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            layers.append(block(inputs, width, 2 if number == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def train(mode: Any, steps: int, batch: int, side: int, device: str) -> Data:
    """Trains on noise. Returns images a second and the most bytes in use, in MiB, and None of both without a GPU."""
    import time

    import torch
    from torch.nn import functional

    from ..training import Training

    torch.manual_seed(0)
    model = resnet50().to(memory_format=torch.channels_last)
    training = Training(mode, model, lambda these: torch.optim.SGD(these, lr=1e-3, momentum=0.9), device)
    images = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=device)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = 0.0
    for step in range(WARM + steps):
        if step == WARM:
            if on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
        training.step(functional.cross_entropy(training.forward(images), labels))
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    most = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    training.close()
    return {"images": round(batch * steps / seconds, 1), "mebibytes": round(most) if most is not None else None}


def measure(budget: Budget) -> Data:
    steps = budget.steps(30, 10)
    found = {name: train(mode, steps, BATCH, 224, budget.device) for name, mode in modes().items()}
    return {"seeds": [0], "steps": steps, "batch": BATCH, "modes": found}


def words(data: Data) -> str:
    base = data["modes"][NAMES[0]]
    rows = [[name, f"{seen['images']:,.0f}", f"{seen['images'] / base['images']:.2f}", f"{seen['mebibytes']:,}"]
            for name, seen in data["modes"].items()]
    return (f"Batch {data['batch']} of noise, channels last, SGD: without a data loader.\n\n"
            + table(["trained in", "images a second", "of FP32's", "MiB at most"], rows))


def draw(data: Data) -> dict[str, str]:
    picture = Picture(880, 330, "ResNet-50 on a GPU", "Images a second and the most memory in use, for each mode.")
    names = list(data["modes"])
    over = Axis(0, len(names), "", [(i + 0.5, name) for i, name in enumerate(names)])
    for k, (of, title) in enumerate((("images", "images a second"), ("mebibytes", "MiB at most"))):
        most = max(seen[of] for seen in data["modes"].values())
        plot = Plot(picture, 70 + 440 * k, 75, 345, 200, over, Axis(0, 1.1 * most, title), title)
        for i, name in enumerate(names):
            plot.bar(i + 0.15, i + 0.85, 0, data["modes"][name][of], colour(k))
    return {"resnet50.svg": picture.svg()}
