# SPDX-License-Identifier: Apache-2.0
"""Activations in fewer bits, beside ActNN and GACT."""
from __future__ import annotations

from ..bars import Bar, height_of
from ..bars import draw as draw_bars
from ..figure import Budget, Data, Figure, Source, table
from ..svg import Axis, Picture, colour

THEIRS = {"before MB": 5107, "after MB": 550}
IMAGES = 64  # with as many images a ResNet-50 has about their bytes before

FIGURE = Figure("activations", "Activations in 8, 4 and 2 bits", Source(
    "The activations of a ResNet-50 shrink from 5,107 to 550 MB.", dict(THEIRS),
    "J. Chen et al., *ActNN*, ICML 2021, [arXiv:2104.14129](https://arxiv.org/abs/2104.14129); X. Liu et al., *GACT*, "
    "ICML 2022, [arXiv:2206.11357](https://arxiv.org/abs/2206.11357)"), seconds=60, quick=20)


def measure(budget: Budget) -> Data:
    from ..work import activations

    return activations.measure(budget)


def whole(row: Data) -> float:
    """Returns the least number of times fewer bytes."""
    return float(row["before_mb"] / row["now_mb"])


def words(data: Data) -> str:
    rows: list[list[object]] = []
    for row in (row for row in data["rows"] if row["bits"] == 4 or row["network"] == "ResNet-50"):
        rows.append([row["network"], row["level"], row["bits"], f"{row['before_mb']:.2f}", f"{row['now_mb']:.2f}",
                     f"{whole(row):.1f}x"])
    of = {(row["level"], row["bits"]): row for row in data["rows"] if row["network"] == "ResNet-50"}
    ratio = THEIRS["before MB"] / THEIRS["after MB"]
    said = ""
    if ("O0", 2) in of:
        two = of["O0", 2]
        before, now = (f"{two[member] * IMAGES:,.0f}" for member in ("before_mb", "now_mb"))
        said = (f"With {IMAGES} images a ResNet-50 in FP32 goes from {before} to {now} MB in 2 bits, {whole(two):.1f} "
                f"times fewer. Theirs is {ratio:.1f} times. ")
    return f"""
`amp.compress_activations(model, bits)` packs the tensors that forward saves for backward. {said}Bytes of one forward
divided by its batch, without weights; masks of ReLU and pooling indices are exact. At O4 the saved tensors already have
16 bits, so that the same bits save half as much. A transformer's softmax, query and key stay exact without
`softmax=True`. The accuracy in 4 and 2 bits: `bench/python/accuracy.py`.

{table(['network', 'level', 'bits', 'MB a sample', 'packed', 'fewer'], rows)}
"""


def draw(data: Data) -> dict[str, str]:
    rows = [Bar("ActNN and GACT: ResNet-50", [(THEIRS["before MB"] / THEIRS["after MB"], "var(--soft)")],
                f"{THEIRS['before MB'] / THEIRS['after MB']:.1f}x, published")]
    network = ""
    for row in data["rows"]:
        if row["network"] != network:
            network = row["network"]
            rows.append(Bar(network, head=True))
        rows.append(Bar(f"{row['level']}, {row['bits']} bits", [(whole(row), colour(("O0", "O4").index(row["level"])))],
                        f"{whole(row):.1f}x: {row['before_mb']:.1f} to {row['now_mb']:.2f} MB a sample"))
    picture = Picture(760, 76 + height_of(rows) + 10, FIGURE.title,
                      "Bars: how many times fewer bytes the saved activations take.")
    picture.text(16, 50, "Times fewer bytes of saved activations")
    draw_bars(picture, 76, rows, Axis(0, 16, ""), told=190, rule=1)
    return {"activations.svg": picture.svg()}
