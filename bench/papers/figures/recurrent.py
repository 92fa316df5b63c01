# SPDX-License-Identifier: Apache-2.0
"""A recurrent language model in FP32, and at O2 with loss scales of 1 and 128."""
from __future__ import annotations

from typing import Any

from ..figure import PAPER, Budget, Data, Figure, Source, mean, over_seeds, spread, table
from ..svg import Axis, Picture, Plot, colour

FIGURE = Figure(
    "recurrent", "A recurrent language model and the loss scale",
    Source("bigLSTM (2 layers of 8,192, 1B words) follows FP32 in mixed precision for 300,000 iterations and then "
           "diverges. With the loss scaled by 128 it equals FP32.",
           {"iterations before it diverges unscaled": 300000, "scale that equals FP32": 128}, f"{PAPER}, figure 5"),
    seconds=360, quick=50, cuda=60)
NAMES = ("FP32", "O2, scale 1", "O2, scale 128")
ROWS, LENGTH, WIDTH, LAYERS, RATE, EVERY = 64, 16, 96, 2, 5e-3, 20
PIECES = 1024  # micro-batches of a step: a million letters, as large language models have


def modes() -> list[Any]:
    from ..training import Mode

    return [Mode(NAMES[0]), *(Mode(name, "O2", {"loss_scale": scale}) for name, scale in zip(NAMES[1:], (1.0, 128.0)))]


def train(mode: Any, seed: int, steps: int, text: Any, device: str) -> Data:
    """Trains once. Returns losses in nats a letter, and the share of gradients that fp16 made zero."""
    import math

    import torch
    from torch.nn import functional

    from ..language import Language
    from ..training import Training

    torch.manual_seed(seed)
    model = Language(text.letters, WIDTH, LAYERS)
    training = Training(mode, model, lambda these: torch.optim.Adam(these, lr=RATE), device)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    shown: list[float | None] = []
    for step in range(steps):
        inputs, targets = text.batch(generator, ROWS, LENGTH)
        loss = functional.cross_entropy(training.forward(inputs).flatten(0, 1), targets.flatten())
        training.step(loss / PIECES)
        value = float(loss.detach())
        losses.append(value if math.isfinite(value) else math.nan)
        if (step + 1) % EVERY == 0:
            value = mean(losses[-EVERY:])
            shown.append(round(value, 4) if math.isfinite(value) else None)
        if not math.isfinite(losses[-1]):
            break
    inputs, targets = text.examined(64, 128)
    with torch.no_grad():
        test = float(functional.cross_entropy(training.forward(inputs).flatten(0, 1).float(), targets.flatten()))
    training.close()
    return {"loss": shown, "test": round(test, 4) if math.isfinite(test) else None, "steps": len(losses)}


def measure(budget: Budget) -> Data:
    from ..language import Text
    from ..training import half_products

    text = Text(budget.device)
    seeds, steps = [0] if budget.quick else [0, 1, 2], max(budget.steps(400, 160), EVERY)
    by_name = {mode.name: mode for mode in modes()}
    found = over_seeds(budget, seeds, by_name,
                       lambda name, seed: train(by_name[name], seed, steps, text, budget.device))
    return {**found, "steps": steps, "rows": ROWS, "length": LENGTH, "width": WIDTH, "layers": LAYERS, "rate": RATE,
            "pieces": PIECES, "every": EVERY,
            "text": {"letters": text.count, "kinds": text.letters, "sha256": text.digest},
            "half": half_products(budget.device)}


def words(data: Data) -> str:
    rows = [[name, spread([run["test"] for run in runs], 3), spread([run["loss"][-1] for run in runs], 3),
             max(run["steps"] for run in runs)] for name, runs in data["runs"].items()]
    text = data["text"]
    return (f"{data['layers']} LSTMs of {data['width']} over the text of Python's own help ({text['letters']:,} "
            f"letters of {text['kinds']} kinds), Adam at {data['rate']:g}, each op in fp16 at O2. A loss scale of 1 is "
            f"the unscaled training. A step takes one micro-batch of {data['rows']} x {data['length']} letters, and "
            f"its loss is divided by {data['pieces']:,}, as scripts do that accumulate so many for a step of a million "
            "letters. Adam's updates do not depend on the divisor (but for its epsilon), while fp16 gradients vanish. "
            "Losses are in nats a letter.\n\n"
            + table(["trained in", "test loss", "last training loss", "steps"], rows))


def draw(data: Data) -> dict[str, str]:
    runs, every = data["runs"], data["every"]
    picture = Picture(880, 380, "Unscaled, small gradients vanish in fp16",
                      "Training loss by step of a recurrent model in FP32, and at O2 with scales of 1 and 128.")
    picture.legend(16, 52, [(name, colour(i)) for i, name in enumerate(NAMES)], dashed=NAMES[2:])
    losses = [value for each in runs.values() for run in each for value in run["loss"] if value is not None]
    last = every * max(len(run["loss"]) for each in runs.values() for run in each)
    plot = Plot(picture, 70, 80, 780, 245, Axis(0, last, "step"),
                Axis(0.95 * min(losses), 1.02 * max(losses), "training loss, nats a letter"))
    for i, name in enumerate(NAMES):
        series = [[run["loss"][k] for run in runs[name] if k < len(run["loss"]) and run["loss"][k] is not None]
                  for k in range(max(len(run["loss"]) for run in runs[name]))]
        at = [((k + 1) * every, values) for k, values in enumerate(series) if values]
        plot.band([(x, min(y)) for x, y in at], [(x, max(y)) for x, y in at], colour(i))
        plot.line([(x, mean(y)) for x, y in at], colour(i), "7 5" if i == 2 else "none", 2.5)
        if any(run["steps"] < data["steps"] for run in runs[name]):
            plot.cross(*max((x, mean(y)) for x, y in at))
    return {"recurrent.svg": picture.svg()}
