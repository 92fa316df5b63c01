# SPDX-License-Identifier: Apache-2.0
"""Products of matrices on a CPU beside other libraries."""
from __future__ import annotations

from ..compared import FASTER, draw_lines, measured_with, rows_of
from ..figure import PAPER, Budget, Data, Figure, Source, table

PACKAGES = ("torch", "numkong")
FIGURE = Figure("products", "Products on a CPU", Source(
    "GPUs compute in half precision 2 to 8 times as fast as in FP32. No times for CPUs are published.",
    {"times FP32's rate, at least": 2, "at most": 8}, f"{PAPER}, section 1"), seconds=150, quick=40)


def measure(budget: Budget) -> Data:
    from ..work import speed

    return speed.c_group("matmul", PACKAGES, budget)


def lines(data: Data) -> list[Data]:
    """Beside peers, and libamp's own FP32."""
    kept = ("torch", "oneDNN's primitive", "fp32, same backend")
    found = [line for line in data["lines"] if line["reference_name"].startswith(kept)]
    peer = [(line["reference_name"].startswith(kept[2]), "torch" in line["reference_name"],
             line["reference_name"].split(", ")[-2:-1]) for line in found]
    return [found[i] for i in sorted(range(len(found)), key=lambda i: peer[i])]


def words(data: Data) -> str:
    return f"""
square products with `amp_matmul` on one thread, in turns with the same product of another library. Beside oneDNN: an op
of a host that libamp wraps and that multiplies through the backend onednn, and the same primitive called directly.
libamp in C multiplies by the system's oneDNN, torch by its own, newer one. NumKong multiplies by a packed matrix, which
is packed anew in each product, and sums FP32 in FP64. {FASTER} The table has an edge of 1024, the picture all.

{table(['libamp, edge', 'beside', 'times as fast'], rows_of(line for line in lines(data) if line['size'] == '1024'))}

{measured_with(data)} `tools/bench --group matmul --peers PYTHON` has these lines and their limits.
"""


def draw(data: Data) -> dict[str, str]:
    return {"products.svg": draw_lines(FIGURE.title, lines(data), 0.2, 20, by_peer=True)}
