# SPDX-License-Identifier: Apache-2.0
"""Memory by level: 8w + 2ac becomes 8w + ac."""
from __future__ import annotations

from ..bars import Bar, height_of
from ..bars import draw as draw_bars
from ..figure import PAPER, Budget, Data, Figure, Source, table
from ..svg import Axis, Picture, colour

FIGURE = Figure("memory", "Memory by level", Source(
    "masters add half to the weights, activations are the larger part and take half, and the total is roughly halved.",
    {"activations, of FP32's": 0.5}, f"{PAPER}, section 3.1"), seconds=90, quick=30)

PURPOSES = ("weights", "gradients", "masters", "master gradients", "moments")


def measure(budget: Budget) -> Data:
    from ..work import memory

    return memory.measure(budget)


def total(size: Data) -> float:
    return float(sum(size.values()))


def words(data: Data) -> str:
    ways = data["ways"]
    head = ["level", "weights, gradients", "masters", "their FP32 gradients", "Adam's moments", "together", "predicted",
            "an activation", "predicted", "gated"]
    rows: list[list[object]] = []
    for way, found in ways.items():
        size, activation = found["measured"], found["activation"]
        rows.append([way, f"{size['weights'] + size['gradients']:.2f}",
                     *(f"{size[purpose]:.2f}" for purpose in ("masters", "master gradients", "moments")),
                     f"{total(size):.2f}", f"{total(found['predicted']):.2f}",
                     *(f"{activation[how]:.2f}" for how in ("measured", "predicted", "gated"))])
    fits = []
    for network, found in data["largest"].items():
        fits.append(table([f"{network}, {found['parameters'] / 1e6:.1f} million parameters", "8 GB", "16 GB", "24 GB"],
                          [[way, *(f"{count:,}" for count in each["batch"].values())]
                           for way, each in found["ways"].items()]))
    return f"""
with w parameters, c samples and a activations a sample, FP32 weights and gradients take 8w bytes and FP32 activations
4ac. At O2 weights and gradients of 2 bytes and a master of 4 also make 8w, and activations take 2ac: in units of two
bytes 8w + 2ac becomes 8w + ac. Adam's two moments add 8 bytes a parameter at any level. The table has bytes a parameter
and bytes an activation (saved for backward) of a {data['network']}, {data['parameters'] / 1e6:.1f} million parameters,
after two steps with `FusedAdam`. Predicted: `amp.memory(level=...)` from the training at O0, by the outputs of its ops.
Activations are measured with the gate off, as on a GPU. Gated: on this CPU libamp keeps attention in FP32, where it is
faster, and so its inputs and outputs.

{table(head, rows)}

In Python, FP32 masters have FP32 gradients from backward to `zero_grad`, 4 bytes that no count of papers has. Split and
stochastic masters have none.

The largest batch, **predicted** from these bytes and the activations of a small batch, without a framework's
workspaces and allocator:

{(chr(10) * 2).join(fits)}
"""


def draw(data: Data) -> dict[str, str]:
    rows, colours = [], {purpose: colour(number) for number, purpose in enumerate(PURPOSES)}
    for way, found in data["ways"].items():
        size = found["measured"]
        rows.append(Bar(way, [(size[purpose], colours[purpose]) for purpose in PURPOSES],
                        f"{total(size):.2f} (predicted {total(found['predicted']):.2f})"))
    acts = [Bar(way, [(found["activation"]["measured"], colour(0))],
                f"{found['activation']['measured']:.2f} (predicted {found['activation']['predicted']:.2f})")
            for way, found in data["ways"].items() if "," not in way]
    top, gap = 92, 70
    picture = Picture(760, top + height_of(rows) + gap + height_of(acts) + 14, "Memory by level",
                      "Bars: bytes a parameter by purpose, and bytes an activation, at each level.")
    picture.text(16, 50, "Bytes a parameter with Adam, measured")
    picture.legend(16, 74, list(colours.items()))
    draw_bars(picture, top, rows, Axis(0, 20, ""), told=170)
    below = top + height_of(rows) + gap
    picture.text(16, below - 22, "Bytes an activation that is saved for backward, measured")
    draw_bars(picture, below, acts, Axis(0, 4, ""), told=170)
    return {"memory.svg": picture.svg()}
