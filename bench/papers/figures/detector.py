# SPDX-License-Identifier: Apache-2.0
"""The gradients of activations of a detector, before and after a loss scale of 8, and its trainings with both."""
from __future__ import annotations

from typing import Any

from ..figure import PAPER, Budget, Data, Figure, Source, mean, over_seeds, spread, table
from ..observed import LEAST, bars, share_below
from ..svg import Picture, colour

FIGURE = Figure(
    "detector", "The gradients of activations and a scale of 8",
    Source("of the gradients of activations in a detector (Multibox SSD, FP32) 67 % are zero. A cast to FP16 makes "
           "31 % more zero, and the training diverges. With the loss scaled by 8 it equals FP32: mAP 76.9 in FP32, "
           "77.1 scaled.", {"zero in FP32, %": 67, "zero by a cast, %": 31, "scale that suffices": 8, "mAP, FP32": 76.9,
                       "mAP, scaled by 8": 77.1},
           f"{PAPER}, figure 3; the 31 %: NVIDIA, *Training with Mixed Precision*, "
           "[user guide](https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html)"),
    seconds=180, quick=40, cuda=60)
NAMES = ("FP32", "O2, scale 1", "O2, scale 8")
SCALES, SIDE, CELL, OBJECTS, BATCH, RATE, EVERY = (1, 8, 1024), 64, 2, 6, 8, 2e-3, 20


def scenes(count: int, train: bool, seed: int) -> tuple[Any, Any, Any]:
    """Returns images with some digits each, the class of each anchor (10: none), and the way from it to its digit."""
    import torch

    from ..training import digits

    images, labels = digits("cpu")[:2] if train else digits("cpu")[2:]
    generator = torch.Generator().manual_seed(seed)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    anchors = SIDE // CELL
    pictures, classes = -torch.ones(count, 1, SIDE, SIDE), torch.full((count, anchors, anchors), 10)
    places = torch.zeros(count, 2, anchors, anchors)
    for i in range(count):
        for slot in torch.randperm(16, generator=generator)[:OBJECTS].tolist():
            which, y, x = draw(len(labels)), 16 * (slot // 4) + draw(8), 16 * (slot % 4) + draw(8)
            pictures[i, :, y : y + 8, x : x + 8] = images[which]
            for row in range((y + 3) // CELL, (y + 5) // CELL + 1):
                for column in range((x + 3) // CELL, (x + 5) // CELL + 1):
                    classes[i, row, column] = labels[which]
                    places[i, :, row, column] = torch.tensor([(y + 4) / 8 - row / 4, (x + 4) / 8 - column / 4])
    return pictures, classes, places


def network() -> Any:
    """Returns a fully convolutional network without norms: 11 scores and a way for each anchor, as SSD on VGG."""
    from torch import nn

    layers: list[Any] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 16, 2), (16, 32, 1), (32, 32, 1)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU()]
    made = nn.Sequential(*layers, nn.Conv2d(32, 13, 3, padding=1))
    for module in made:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return made


def loss_of(out: Any, classes: Any, places: Any) -> Any:
    """SSD's loss: all anchors of a digit, three times as many of the hardest others, and smooth L1 of the ways. The
    mean over all anchors."""
    from torch.nn import functional

    each = functional.cross_entropy(out[:, :11], classes, reduction="none").flatten()
    there = (classes != 10).flatten()
    hardest = each.detach().masked_fill(there, 0).topk(3 * int(there.sum())).indices
    where = functional.smooth_l1_loss(out[:, 11:], places, reduction="none").sum(1).flatten()
    return (each[there].sum() + each[hardest].sum() + where[there].sum()) / len(each)


def found(training: Any, data: tuple[Any, Any, Any], device: str) -> float | None:
    """Returns the F1 score of anchors with the right digit in percent, None if an output is not finite."""
    import torch

    with torch.no_grad():
        out = training.forward(data[0].to(device)).float().cpu()
    if not bool(torch.isfinite(out).all()):
        return None
    told, classes = out[:, :11].argmax(1), data[1]
    right = int(((told == classes) & (classes != 10)).sum())
    return round(200 * right / max(int((told != 10).sum()) + int((classes != 10).sum()), 1), 2)


def train(mode: Any, seed: int, steps: int, scene: tuple[Any, Any, Any], test: Any, device: str) -> Data:
    import math

    import torch

    from ..training import Training, batches

    torch.manual_seed(seed)
    training = Training(mode, network(), lambda these: torch.optim.Adam(these, lr=RATE), device)
    losses = []
    for batch in batches(len(scene[0]), BATCH, steps, seed):
        pictures, classes, places = (each[batch].to(device) for each in scene)
        losses.append(training.step(loss_of(training.forward(pictures), classes, places)))
        if not math.isfinite(losses[-1]):
            break
    score = found(training, test, device)
    training.close()
    last = mean(losses[-20:])
    return {"score": score, "loss": round(last, 4) if math.isfinite(last) else None, "steps": len(losses)}


def observe(steps: int, scene: tuple[Any, Any, Any], scale: int, device: str) -> Data:
    """Trains in FP32 with this loss scale, and returns the gradients of activations."""
    import torch
    from libamp.torch import amp

    from ..observed import histogram
    from ..training import Mode, Training, batches

    torch.manual_seed(0)
    training = Training(Mode("FP32", "O0", {"loss_scale": float(scale)}), network(),
                        lambda these: torch.optim.Adam(these, lr=RATE), device)
    amp.observe(training.model, what="inputs", every=EVERY)
    for batch in batches(len(scene[0]), BATCH, steps, 0):
        pictures, classes, places = (each[batch].to(device) for each in scene)
        training.step(loss_of(training.forward(pictures), classes, places))
    layers = ("conv2d (backward)", "relu (backward)")
    seen = [seen.total for seen in amp.observations() if seen.op and seen.op.endswith(layers)]
    training.close()
    return histogram(seen, SCALES if scale == 1 else (1,))


def measure(budget: Budget) -> Data:
    from ..training import Mode, half_products

    seeds, steps = [0] if budget.quick else [0, 1, 2], budget.steps(250, 100)
    scene, test = scenes(100 if budget.quick else 400, True, 0), scenes(100, False, 1)
    modes = {NAMES[0]: Mode(NAMES[0]), **{name: Mode(name, "O2", {"loss_scale": float(scale)})
                                           for name, scale in zip(NAMES[1:], SCALES)}}
    seen = {str(scale): observe(steps, scene, scale, budget.device) for scale in SCALES[:2]}
    trained = over_seeds(budget, seeds, modes,
                         lambda name, seed: train(modes[name], seed, steps, scene, test, budget.device))
    return {**trained, "steps": steps, "rate": RATE, "batch": BATCH, "every": EVERY, "observed": seen,
            "half": half_products(budget.device)}


def words(data: Data) -> str:
    one, eight = (data["observed"][str(scale)] for scale in SCALES[:2])
    numbers = one["elements"]
    rows = [["zero in FP32", f"{100 * one['zeros'] / numbers:.1f} %", f"{100 * eight['zeros'] / numbers:.1f} %"],
            ["zero by a cast to fp16", f"{100 * one['lost']['1'] / numbers:.1f} %",
             f"{100 * eight['lost']['1'] / numbers:.1f} %"],
            ["below 2^-24, of those not zero", *(f"{share_below(seen, LEAST):.1f} %" for seen in (one, eight))]]
    trained = [[name, spread([run["score"] for run in runs], 1, " %"), spread([run["loss"] for run in runs], 4),
                max(run["steps"] for run in runs)] for name, runs in data["runs"].items()]
    return (f"A fully convolutional detector, without norms, of {OBJECTS} digits in images of {SIDE} x {SIDE}, with "
            "SSD's loss: hard negatives, three for each digit. `amp.observe` counts the gradients of its activations "
            f"in one step of {data['every']}, in FP32.\n\n"
            + table(["gradients of activations", "unscaled", "scaled by 8"], rows)
            + f"\n\nThe trainings, Adam at {data['rate']:g}, batch {data['batch']}, scored by the anchors with "
            f"the right digit (F1).\n\n"
            + table(["trained in", "F1", "last loss", "steps"], trained)
            + "\n\nIn the paper a cast makes 31 % more zero, and the unscaled training diverges. Here it makes "
            f"{100 * one['lost']['1'] / numbers:.1f} % more zero, {100 * eight['lost']['1'] / numbers:.1f} % at a "
            f"scale of 8, and the unscaled training ends at an F1 of {trained[1][1]}, FP32 at {trained[0][1]}.")


def draw(data: Data) -> dict[str, str]:
    picture = Picture(880, 330, "Gradients of activations, before and after a loss scale of 8",
                      "Histograms of the exponents of the gradients of a detector's activations, unscaled and scaled.")
    for i, scale in enumerate(SCALES[:2]):
        seen = data["observed"][str(scale)]
        zeros, lost = (100 * count / seen["elements"] for count in (seen["zeros"], seen["lost"]["1"]))
        title = f"scale {scale}: {zeros:.1f} % zero, {lost:.1f} % more in fp16"
        bars(picture, seen, (70 + 440 * i, 75, 345, 200), (-48, 0), title, colour(i))
    return {"detector.svg": picture.svg()}
