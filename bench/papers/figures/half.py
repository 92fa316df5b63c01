# SPDX-License-Identifier: Apache-2.0
"""fp16 on CPUs beside torch."""
from __future__ import annotations

from ..compared import FASTER, draw_lines, measured_with, rows_of
from ..figure import PAPER, Budget, Data, Figure, Source, table

FIGURE = Figure("half", "FP16 on a CPU", Source(
    "GPUs compute in half precision 2 to 8 times as fast as in FP32. Apex needs a GPU, and no times for CPUs are "
    "published.", {"times FP32's rate, at least": 2, "at most": 8}, f"{PAPER}, section 1"), seconds=200, quick=40)
MEANS = "avx2: a CPU without AVX-512; avx512-bf16: one with AVX512-BF16; all: the machine named below."


def measure(budget: Budget) -> Data:
    from ..work import speed

    return speed.python_group("half", ("torch",), budget)


def words(data: Data) -> str:
    return f"""
a product of 1024 x 1024 and whole training steps at O1 and O2, one thread, in turns with torch in fp16
(`torch.autocast` with a `GradScaler`) and in FP32. In steps the package for Python multiplies by torch's kernels where
they are fast, and by those of libamp where torch computes fp16 element by element. Instruction sets are limited by
environment variables, each in a process of its own. {MEANS} {FASTER}

{table(['libamp', 'beside', 'times as fast'], rows_of(data['lines']))}

{measured_with(data)} `tools/bench --python --group half --cpu avx2 --cpu all` has these lines.
"""


def draw(data: Data) -> dict[str, str]:
    return {"half.svg": draw_lines(FIGURE.title, data["lines"], 0.2, 1000)}
