# SPDX-License-Identifier: Apache-2.0
"""A step of Adam on a CPU beside other libraries."""
from __future__ import annotations

from ..compared import FASTER, draw_lines, measured_with, of_peers, rows_of
from ..figure import Budget, Data, Figure, Source, table

PACKAGES = ("torch", "bitsandbytes", "torchao")
FIGURE = Figure("adam", "Adam on a CPU", Source(
    "Adam's moments in 8 bits take 2 bytes a parameter instead of 8, and the step on a GPU is not slower. No times for "
    "CPUs are published.", {"bytes a parameter, FP32 moments": 8, "bytes a parameter, 8 bits": 2},
    "T. Dettmers et al., *8-bit Optimizers via Block-wise Quantization*, ICLR 2022, "
    "[arXiv:2110.02861](https://arxiv.org/abs/2110.02861)"), seconds=150, quick=40)


def measure(budget: Budget) -> Data:
    from ..work import speed

    return speed.c_group("optim", PACKAGES, budget)


def words(data: Data) -> str:
    return f"""
a step over 200 tensors of 50,000 FP32 parameters on one thread, with `amp_optim_list`, in turns with the same step of
another library in its own process. {FASTER}

{table(['libamp', 'beside', 'times as fast'], rows_of(of_peers(data)))}

{measured_with(data)} `tools/bench --group optim --peers PYTHON` has these lines and their limits.
"""


def draw(data: Data) -> dict[str, str]:
    return {"adam.svg": draw_lines(FIGURE.title, of_peers(data), 0.5, 100)}
