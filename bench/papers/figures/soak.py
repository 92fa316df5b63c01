# SPDX-License-Identifier: Apache-2.0
"""Many steps under a trace and observing: do memory, trace and step stay flat?"""
from __future__ import annotations

import statistics

from ..figure import Budget, Data, Figure, Source, table
from ..svg import Axis, Picture, Plot, colour

FIGURE = Figure("soak", "Soak", Source(
    "no paper has this figure. Users of Apex reported memory that grew from iteration to iteration.",
    {"issue of Apex": 439}, "[NVIDIA/apex, issue 439](https://github.com/NVIDIA/apex/issues/439)"),
    seconds=120, quick=40, slow=3600)
COLUMNS = ("us a step", "resident MiB", "trace MiB")


def measure(budget: Budget) -> Data:
    from ..work import soak

    return soak.measure(budget)


def part(run: Data, column: int, begin: float, end: float) -> list[float]:
    """Returns a column of the samples between two shares of the run."""
    samples = run["samples"]
    return [sample[column] for sample in samples[int(begin * len(samples)) : max(int(end * len(samples)), 1)]]


def words(data: Data) -> str:
    rows: list[list[object]] = []
    for run in data["runs"]:
        early, late = (statistics.median(part(run, 1, *share)) for share in ((0.1, 0.3), (0.8, 1.0)))
        before, after = (max(part(run, 2, *share)) / 1024 for share in ((0.0, 0.2), (0.0, 1.0)))
        end = run["end"]
        rows.append([run["name"], f"{run['steps']:,}", f"{early:.0f}", f"{late:.0f}", f"{before:.1f}", f"{after:.1f}",
                     f"{run['samples'][-1][3] / 1024:.1f}", f"{end.get('skipped', 0):,}"])
    least = ("" if data["slow"] else
             " This run is shorter: `tools/results --slow` makes a million steps, in Python 100,000.")
    return f"""
with `AMP_TRACE`, `AMP_TRACE_BYTES` of 8 MiB (64 MiB without it) and `AMP_OBSERVE=1`: one iteration of 200 is observed.
Whenever half of the remaining room is used, fewer brackets get a line, so that a trace stays below its limit. The C
host is the demo at O2 with two images a step. The Python network is small (1,136 parameters): a step is libamp's and
torch's own processor time, and varies with the work of others on the machine.{least} Early: the second and third tenth
of the run. Late: the last fifth. Memory: the largest up to a fifth of the run, and of all of it.

{table(['program', 'steps', 'us a step, early', 'late', 'MiB, early', 'at most', 'trace, MiB', 'skipped steps'], rows)}
"""


def draw(data: Data) -> dict[str, str]:
    picture = Picture(860, 330, FIGURE.title, "Three plots over the share of the run: processor time of a step, "
                      "resident memory, size of the trace. A line for each program.")
    picture.legend(16, 52, [(run["name"], colour(number)) for number, run in enumerate(data["runs"])])
    for column, name in enumerate(COLUMNS, 1):
        scale = 1 if column == 1 else 1024
        curves = [[(100 * sample[0] / run["steps"], sample[column] / scale) for sample in run["samples"]]
                  for run in data["runs"]]
        # the first steps compile
        most = max(y for points in curves for _, y in points[len(points) // 10 :])
        plot = Plot(picture, 66 + 280 * (column - 1), 92, 200, 180, Axis(0, 100, "% of the steps"),
                    Axis(0, 1.15 * most, name))
        for number, points in enumerate(curves):
            plot.line(points, colour(number))
    return {"soak.svg": picture.svg()}
