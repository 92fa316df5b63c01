# SPDX-License-Identifier: Apache-2.0
"""FP32, 16 bits with FP32 masters and 16 bits without, at a rate whose updates are below half a unit of the weights."""
from __future__ import annotations

from typing import Any

from ..figure import PAPER, Budget, Data, Figure, Source, mean, over_seeds, spread, table
from ..svg import Axis, Picture, Plot, colour

FIGURE = Figure(
    "masters", "FP32 masters",
    Source("a speech model (DeepSpeech 2, Mandarin) equals FP32 with FP32 masters. Without them, with updates in FP16, "
           "it loses 80 % of its accuracy relatively: an update below 1/2048 of its weight has no effect.",
           {"relative loss of accuracy without masters, %": 80, "least ratio of an update that counts": "1/2048"},
           f"{PAPER}, figure 2a"),
    seconds=180, quick=40, cuda=60)
NAMES = ("FP32", "O2, FP32 masters", "O2, no masters")
RATE, MOMENTUM, BATCH, EVERY = 3e-4, 0.9, 32, 100


def modes() -> list[Any]:
    from ..training import Mode

    half = {"keep_batchnorm_fp32": False}  # the weights of batch norm in 16 bits, too
    return [Mode(NAMES[0]), Mode(NAMES[1], "O2", half), Mode(NAMES[2], "O2", {**half, "master_weights": False})]


def train(mode: Any, seed: int, steps: int, device: str) -> Data:
    """Trains once. Returns the loss and the mean change of the norm weights, each EVERY steps, and the end."""
    import torch
    from torch.nn import functional

    from ..training import ResNet, Training, accuracy, batches, digits

    images, labels, test_images, test_labels = digits(device)
    torch.manual_seed(seed)
    made = ResNet()
    training = Training(mode, made, lambda these: torch.optim.SGD(these, lr=RATE, momentum=MOMENTUM), device)
    norms = [module.weight for module in made.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    losses: list[float] = []
    moved: list[float] = []
    shown: list[float] = []
    for step, batch in enumerate(batches(len(labels), BATCH, steps, seed)):
        loss = functional.cross_entropy(training.forward(images[batch]), labels[batch])
        losses.append(training.step(loss))
        if (step + 1) % EVERY == 0:
            change = (torch.cat([weight.detach().float() for weight in norms]) - 1).abs()
            moved.append(round(float(change.mean()), 7))
            shown.append(round(mean(losses[-EVERY:]), 4))
    still = float((change == 0).float().mean())
    right = accuracy(training, test_images, test_labels)
    training.close()
    return {"loss": shown, "moved": moved, "still": round(100 * still, 2), "accuracy": right}


def measure(budget: Budget) -> Data:
    from ..training import half_products

    seeds, steps = [0] if budget.quick else [0, 1, 2], max(budget.steps(2000, 1000), EVERY)
    by_name = {mode.name: mode for mode in modes()}
    found = over_seeds(budget, seeds, by_name, lambda name, seed: train(by_name[name], seed, steps, budget.device))
    return {**found, "steps": steps, "rate": RATE, "momentum": MOMENTUM, "batch": BATCH, "every": EVERY,
            "half": half_products(budget.device)}


def words(data: Data) -> str:
    rows = [[name, spread([run["accuracy"] for run in runs], 1, " %"), f"{mean([run['loss'][-1] for run in runs]):.3f}",
             f"{mean([run['moved'][-1] for run in runs]):.5f}", f"{mean([run['still'] for run in runs]):.0f} %"]
            for name, runs in data["runs"].items()]
    of = {name: mean([run["accuracy"] for run in runs]) for name, runs in data["runs"].items()}
    lost = 100 * (of[NAMES[0]] - of[NAMES[2]]) / of[NAMES[0]]
    head = ["trained in", "test accuracy", "last loss", "mean change of norm weights", "norm weights that never moved"]
    return (f"A small ResNet on 8 x 8 digits, SGD at {data['rate']:g} with momentum {data['momentum']}, batch "
            f"{data['batch']}. Both trainings at O2 have batch norm in fp16 and differ in their masters "
            "alone. A weight of 1 in fp16 moves by 0.00049 or not at all, and here most updates are "
            f"below half of that. Products in fp16 are {data['half']}.\n\n{table(head, rows)}\n\n"
            f"Without masters {lost:.0f} % of FP32's accuracy are lost here, 80 % in the paper.")


def draw(data: Data) -> dict[str, str]:
    runs, every = data["runs"], data["every"]
    count = len(runs[NAMES[0]][0]["loss"])
    at = [(i + 1) * every for i in range(count)]
    picture = Picture(880, 360, "Without FP32 masters training stalls",
                      "Training loss, and change of the norm weights, by step, for FP32, O2 with and without masters.")
    picture.legend(16, 52, [(name, colour(i)) for i, name in enumerate(NAMES)], dashed=NAMES[1:2])
    most = max(max(run["loss"]) for each in runs.values() for run in each)
    over = Axis(0, at[-1], "step")
    losses = Plot(picture, 70, 90, 350, 215, over, Axis(0, most * 1.05, "training loss"))
    largest = max(max(run["moved"]) for each in runs.values() for run in each)
    moves = Plot(picture, 510, 90, 350, 215, over, Axis(0, largest * 1.05, "mean |w - 1| of norm weights"))
    for i, name in enumerate(NAMES):
        dash = "6 4" if i == 1 else "none"
        for plot, of in ((losses, "loss"), (moves, "moved")):
            series = [[run[of][k] for run in runs[name]] for k in range(count)]
            plot.band([(x, min(y)) for x, y in zip(at, series)], [(x, max(y)) for x, y in zip(at, series)], colour(i))
            plot.line([(x, mean(y)) for x, y in zip(at, series)], colour(i), dash, 2.5)
    return {"masters.svg": picture.svg()}
