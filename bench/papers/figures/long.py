# SPDX-License-Identifier: Apache-2.0
"""Long trainings: is a level's loss curve within the noise of FP32's seeds?"""
from __future__ import annotations

import math
import statistics

from ..figure import PAPER, Budget, Data, Figure, Source, mean, table
from ..svg import Axis, Picture, Plot, colour

FIGURE = Figure("long", "Loss curves of several seeds", Source(
    "mixed precision with FP32 masters and loss scaling follows FP32's curve with the same rates, and ends at the same "
    "accuracy.", {"top-1 of a ResNet-50, FP32, %": 75.92, "top-1 of a ResNet-50, mixed, %": 76.04},
    f"{PAPER}, table 1"), seconds=360, quick=30, slow=14 * 3600)


def measure(budget: Budget) -> Data:
    from ..work import long

    return long.measure(budget)


def tests(runs: Data) -> list[float]:
    return [run["test"] if run["test"] is not None else math.nan for run in runs.values()]


def distance(runs: Data, reference: Data) -> float | None:
    """Returns the difference of the means, in standard deviations of FP32's seeds; None for less than two seeds."""
    exact = tests(reference)
    if len(exact) < 2 or len(runs) < len(exact) or statistics.stdev(exact) == 0:
        return None
    return (mean(tests(runs)) - mean(exact)) / statistics.stdev(exact)


def gap(runs: Data, reference: Data) -> float | None:
    """Returns the largest difference of the mean curves of the same seeds after their first fifth, of FP32's first
    loss."""
    ours, exact = middle(runs), middle({seed: reference[seed] for seed in runs})
    first = len(exact) // 5
    pairs = list(zip(ours[first:], exact[first:]))
    if not pairs or any(not math.isfinite(one) for pair in pairs for one in pair):
        return None
    return max(abs(one - other) for one, other in pairs) / exact[0]


def middle(runs: Data) -> list[float]:
    """Returns the mean curve."""
    curves = [run["curve"] for run in runs.values()]
    return [mean([math.nan if point is None else point for point in points]) for points in zip(*curves)]


def ends(runs: Data) -> str:
    values = tests(runs)
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{deviation}" if values else "not run"


def words(data: Data) -> str:
    rows: list[list[object]] = []
    for name, task in data["tasks"].items():
        exact = task["runs"]["FP32"]
        for mode, runs in task["runs"].items():
            if not runs:
                continue
            apart, most = distance(runs, exact), gap(runs, exact)
            same = mode == "FP32"
            rows.append([f"{name}, {task['parameters'] / 1e6:.1f} million parameters", mode, ends(runs),
                         "" if same or apart is None else f"{apart:+.1f}",
                         "" if same or most is None else f"{100 * most:.1f} %"])
    units = ", ".join(f"{task['unit']} ({name})" for name, task in data["tasks"].items())
    size = "" if data["slow"] else (" These are small networks and few steps, so that the whole run fits its minutes: "
                                    "`tools/results --slow` trains 10.7 and 11 million parameters for 10,000 steps.")
    return f"""
a transformer over the characters of Python's `help()`, and a ResNet-18 on the digits: the same weights, batches and
rates in each mode of a seed.{size} Autocast is torch's, in fp16 with its `GradScaler`. Test data, {units}: mean ±
deviation of {len(data['seeds'])} seeds, and the distance of a mode's mean to FP32's in units of FP32's deviation (with
three seeds less than 2 is no difference that can be seen). The last column is the largest difference of the mean loss
curves after their first fifth, in percent of the first loss.

{table(['network', 'mode', 'test', 'deviations from FP32', 'largest gap of the curves'], rows)}
"""


def losses(picture: Picture, left: float, name: str, task: Data, steps: int) -> None:
    """The mean curve of each mode."""
    curves = {mode: middle(runs) for mode, runs in task["runs"].items() if runs}
    values = [value for points in curves.values() for value in points if math.isfinite(value)]
    log = max(values) / max(min(values), 1e-9) > 30
    low = max(min(values), 1e-4) if log else 0.95 * min(values)
    plot = Plot(picture, left, 92, 340, 220, Axis(0, steps, "step"), Axis(low, max(values), "training loss", log=log),
                title=f"{name}, {task['parameters'] / 1e6:.1f} million parameters")
    lines(plot, curves, steps)


def gaps(picture: Picture, left: float, task: Data, steps: int) -> None:
    """The difference of each mean curve to FP32's, and the range of FP32's seeds."""
    exact = middle(task["runs"]["FP32"])
    curves = {mode: [100 * (one - other) / exact[0] for one, other in zip(
        middle(runs), middle({seed: task["runs"]["FP32"][seed] for seed in runs}))]
              for mode, runs in task["runs"].items() if runs}
    each = [[100 * (one - other) / exact[0] for one, other in zip(run["curve"], exact)]
            for run in task["runs"]["FP32"].values()]
    most = 1.1 * max(abs(value) for points in [*curves.values(), *each] for value in points if math.isfinite(value))
    most = max(most, 0.1)
    plot = Plot(picture, left, 400, 340, 180, Axis(0, steps, "step"), Axis(-most, most, "% of the first loss"),
                title="difference of the loss; the band: FP32's seeds")
    low, high = ([(x, bound(points)) for x, points in zip(places(exact, steps), zip(*each))] for bound in (min, max))
    plot.band(low, high, colour(0))
    lines(plot, curves, steps)


def places(points: list[float], steps: int) -> list[float]:
    return [steps * (i + 0.5) / len(points) for i in range(len(points))]


def lines(plot: Plot, curves: dict[str, list[float]], steps: int) -> None:
    for number, (mode, points) in enumerate(curves.items()):
        known = [(x, y) for x, y in zip(places(points, steps), points) if math.isfinite(y)]
        plot.line(known, colour(number), "5 3" if mode == "autocast" else "none")


def draw(data: Data) -> dict[str, str]:
    picture = Picture(860, 640, FIGURE.title, "Training loss over steps, a line for each mode, the mean of the seeds. "
                      "Below it the difference to FP32's, with the range of FP32's seeds as a band.")
    modes = list(next(iter(data["tasks"].values()))["runs"])
    picture.legend(16, 52, [(mode, colour(number)) for number, mode in enumerate(modes)], dashed=["autocast"])
    for number, (name, task) in enumerate(data["tasks"].items()):
        losses(picture, 70 + 410 * number, name, task, data["steps"][name])
        gaps(picture, 70 + 410 * number, task, data["steps"][name])
    return {"long.svg": picture.svg()}
