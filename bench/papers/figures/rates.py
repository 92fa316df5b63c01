# SPDX-License-Identifier: Apache-2.0
"""Batch and rate: where FP16 alone, O1, O2, O3 and autocast train, and where they end in NaN."""
from __future__ import annotations

from typing import Any

from ..figure import Budget, Data, Figure, Source, table
from ..svg import Picture

FIGURE = Figure(
    "rates", "Batch and rate, by level",
    Source("ResNet-50 in FP16 alone ends in NaN from a batch of 2,048 on, and at O3 too. At O1 and O2 it trains.",
           {"FP16 alone and O3: NaN from batch": 2048, "O1 and O2": "train at each batch"},
           "a post on Apex's levels, quoted second-hand: its text was not found again. A report of NaN at O3 alone, in "
           "a ResNet: [NVIDIA/apex#240](https://github.com/NVIDIA/apex/issues/240)"),
    seconds=300, quick=40, cuda=120)
NAMES = ("FP32", "FP16 alone", "O1", "O2", "O3", "autocast")
BATCHES, RATES = (64, 128, 256, 512, 1024), (0.05, 0.2, 0.8, 3.2)
MOMENTUM, ENDED = 0.9, 3  # a training ends after so many losses in a row that are not finite


def modes() -> dict[str, Any]:
    from ..training import Mode

    return {name: Mode(name, level=name if name[0] == "O" else "", half=name == "FP16 alone",
                       autocast=name == "autocast") for name in NAMES}


def train(mode: Any, batch: int, rate: float, epochs: int, device: str) -> Data:
    """Trains once. Returns the accuracy, None with the step of the first NaN, and the number of steps."""
    import math

    import torch
    from torch.nn import functional

    from ..training import ResNet, Training, accuracy, batches, digits

    images, labels, test_images, test_labels = digits(device)
    torch.manual_seed(0)
    training = Training(mode, ResNet(), lambda these: torch.optim.SGD(these, lr=rate, momentum=MOMENTUM), device)
    steps = epochs * -(-len(labels) // batch)
    bad: list[int] = []
    for step, chosen in enumerate(batches(len(labels), batch, steps, 0)):
        loss = functional.cross_entropy(training.forward(images[chosen]), labels[chosen])
        bad = [] if math.isfinite(training.step(loss)) else [*bad, step + 1]
        if len(bad) == ENDED:
            break
    right = None if bad else accuracy(training, test_images, test_labels)
    training.close()
    return {"accuracy": right, "nan": bad[0] if bad else (steps if right is None else None)}


def measure(budget: Budget) -> Data:
    from ..training import half_products

    epochs = budget.steps(10, 5)
    sizes = BATCHES[::2] if budget.quick else (*BATCHES[::2], *BATCHES[1::2])
    by_name = modes()
    cells: list[Data] = []
    stopped = ""
    for batch in sizes:  # first those far from each other: a run that ends early has the ends
        for rate in RATES:
            if budget.left() <= 0:
                stopped = stopped or f"before batch {batch} at {rate:g}"
                continue
            cells.extend({"mode": name, "batch": batch, "rate": rate, **train(mode, batch, rate, epochs, budget.device)}
                         for name, mode in by_name.items())
    steps = {f"batch {batch}": epochs * -(-1198 // batch) for batch in sizes}
    return {"seeds": [0], "steps": steps, "epochs": epochs, "momentum": MOMENTUM,
            "batches": sorted({cell["batch"] for cell in cells}),
            "rates": list(RATES), "half": half_products(budget.device), "stopped": stopped, "cells": cells}


def of_mode(data: Data, name: str) -> list[Data]:
    return [cell for cell in data["cells"] if cell["mode"] == name]


def words(data: Data) -> str:
    rows = []
    for name in NAMES:
        cells = of_mode(data, name)
        ended = [f"{cell['batch']} at {cell['rate']:g} (step {cell['nan']})" for cell in cells if cell["nan"]]
        told = [cell["accuracy"] for cell in cells if cell["accuracy"] is not None]
        worst = f"{min(told):.1f} %" if told else "-"
        rows.append([name, f"{max(told, default=0):.1f} %", worst, sum(value > 90 for value in told),
                     ", ".join(ended) or "nowhere"])
    head = ["trained in", "best accuracy", "worst that is finite", f"above 90 %, of {len(of_mode(data, NAMES[0]))}",
            "NaN: batch at rate"]
    return (f"A small ResNet on the digits (1,198 images for training, 599 for the test), SGD with momentum "
            f"{data['momentum']}, {data['epochs']} epochs, one seed. FP16 alone is `.half()` without a loss scale, "
            "with loss and optimizer in fp16. autocast is torch's, with its GradScaler.\n\n"
            + table(head, rows))


def draw(data: Data) -> dict[str, str]:
    picture = Picture(880, 520, "Test accuracy by batch and rate",
                      "Six grids, one for each way to train: accuracy by batch size and learning rate.")
    wide, high = 44, 34
    bottom, width = high * len(data["rates"]), wide * len(data["batches"])
    for i, name in enumerate(NAMES):
        left, top = 70 + 280 * (i % 3), 84 + 225 * (i // 3)
        picture.text(left, top - 12, name, "")
        for k, rate in enumerate(data["rates"]):
            picture.text(left - 8, top + high * (k + 0.6), f"{rate:g}", anchor="end")
        for k, batch in enumerate(data["batches"]):
            picture.text(left + wide * (k + 0.5), top + bottom + 16, f"{batch}", anchor="middle")
        picture.text(left + width / 2, top + bottom + 34, "batch", anchor="middle")
        picture.text(0, 0, "rate", anchor="middle",
                     transform=f"translate({left - 44} {top + bottom / 2}) rotate(-90)")
        for cell in of_mode(data, name):
            x = left + wide * data["batches"].index(cell["batch"])
            y = top + high * data["rates"].index(cell["rate"])
            right = cell["accuracy"]
            fill, opacity = "var(--bad)", 0.45
            if right is not None:
                fill, opacity = "var(--c0)", 0.04 + 0.5 * max(right - 10, 0) / 90
            picture.rect(x + 1, y + 1, wide - 2, high - 2, fill, fill_opacity=round(opacity, 3), rx=3)
            picture.text(x + wide / 2, y + high / 2 + 4, "NaN" if right is None else f"{right:.1f}", "", "middle")
    return {"rates.svg": picture.svg()}
