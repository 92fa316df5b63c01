# SPDX-License-Identifier: Apache-2.0
"""libamp's kernels on tensors in memory: torch's, NumPy's, any with `__dlpack__`, one or a list of them, never copied.

Where a function takes a list it does all of it in one call. Results have the same bits on every machine: docs/python.md
and docs/numerics.md say more. `requires_grad` does not matter: tensors are memory here, and torch's version counters
say that they were written.
"""
from ._core import kernels as _kernels

axpby = _kernels.axpby
cast = _kernels.cast
check = _kernels.check
clip_norm = _kernels.clip_norm
clip_value = _kernels.clip_value
copy = _kernels.copy
cpu_flags = _kernels.cpu_flags
first_nonfinite = _kernels.first_nonfinite
get_num_threads = _kernels.get_num_threads
l2norm = _kernels.l2norm
l2norms = _kernels.l2norms
matmul = _kernels.matmul
optimizer_step = _kernels.optimizer_step
scale = _kernels.scale
set_num_threads = _kernels.set_num_threads
zero = _kernels.zero

__all__ = [
    "axpby", "cast", "check", "clip_norm", "clip_value", "copy", "cpu_flags", "first_nonfinite", "get_num_threads",
    "l2norm", "l2norms", "matmul", "optimizer_step", "scale", "set_num_threads", "zero",
]
