# SPDX-License-Identifier: Apache-2.0
"""The exponents of the gradients of weights, over two trainings in FP32."""
from __future__ import annotations

from typing import Any

from ..figure import PAPER, Budget, Data, Figure, Source, table
from ..observed import LEAST, bars, share_below
from ..svg import Picture, colour

FIGURE = Figure(
    "gradients", "The exponents of gradients",
    Source("of the gradients of weights in a speech model (DeepSpeech 2, Mandarin), sampled over its training in FP32, "
           "about 5 % have an exponent below -24: zero in FP16.", {"below 2^-24, %": 5}, f"{PAPER}, figure 2b"),
    seconds=40, quick=15, cuda=30)
TRAININGS = ("ResNet, digits", "LSTM, letters")
EVERY, SCALES = 20, (1, 128, 1024)


def observe(model: Any, losses: Any, steps: int, rate: float) -> Data:
    """Trains at O0, observed in one step of EVERY."""
    import torch
    from libamp.torch import amp

    from ..observed import histogram

    model, optimizer = amp.initialize(model, torch.optim.Adam(model.parameters(), lr=rate), opt_level="O0", verbosity=0)
    amp.observe(model, what="gradients", every=EVERY)
    for step in range(steps):
        optimizer.zero_grad()
        with amp.scale_loss(losses(model, step), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    found = histogram([seen.total for seen in amp.observations()], SCALES)
    amp.shutdown()
    return found


def measure(budget: Budget) -> Data:
    import torch
    from torch.nn import functional

    from ..language import Language, Text
    from ..training import ResNet, batches, digits

    steps = {TRAININGS[0]: budget.steps(400, 100), TRAININGS[1]: budget.steps(200, 60)}
    images, labels, _, _ = digits(budget.device)
    text = Text(budget.device)
    chosen = batches(len(labels), 64, steps[TRAININGS[0]], 0)
    generator = torch.Generator().manual_seed(0)

    def of_digits(model: Any, step: int) -> Any:
        return functional.cross_entropy(model(images[chosen[step]]), labels[chosen[step]])

    def of_letters(model: Any, step: int) -> Any:
        inputs, targets = text.batch(generator, 64, 32)
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    found = {}
    for name, make, loss in ((TRAININGS[0], ResNet, of_digits),
                             (TRAININGS[1], lambda: Language(text.letters, 96, 2), of_letters)):
        torch.manual_seed(0)
        found[name] = observe(make().to(budget.device), loss, steps[name], 2e-3)
    return {"seeds": [0], "steps": steps, "every": EVERY, "trainings": found}


def words(data: Data) -> str:
    rows = []
    for name, seen in data["trainings"].items():
        numbers = seen["elements"] - seen["zeros"]
        rows.append([name, f"{seen['elements']:,}", f"{100 * seen['zeros'] / seen['elements']:.1f} %",
                     f"{share_below(seen, LEAST):.1f} %",
                     *(f"{100 * seen['lost'][str(scale)] / numbers:.2f} %" for scale in SCALES)])
    head = ["training", "gradients seen", "zero in FP32", "below 2^-24",
            *(f"zero in fp16 at a scale of {scale}" for scale in SCALES)]
    return (f"`amp.observe` counts the gradients of all weights in one step of {data['every']}, in FP32 (O0). The last "
            "four columns are shares of the gradients that are not zero. A cast to fp16 keeps half of the binade below "
            f"2^-24, as 2^-24.\n\n{table(head, rows)}")


def draw(data: Data) -> dict[str, str]:
    picture = Picture(880, 330, "Exponents of the gradients of weights",
                      "Histograms of the exponents of gradients in two trainings, with the share below 2^-24 in red.")
    for i, (name, seen) in enumerate(data["trainings"].items()):
        title = f"{name}: {share_below(seen, LEAST):.1f} % of those not zero are below 2⁻²⁴"
        bars(picture, seen, (70 + 440 * i, 75, 345, 200), (-48, 8), title, colour(i))
    return {"gradients.svg": picture.svg()}
