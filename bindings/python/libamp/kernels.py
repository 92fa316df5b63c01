# SPDX-License-Identifier: Apache-2.0
"""libamp's kernels on tensors in memory: torch's, NumPy's, any with `__dlpack__`, one or a list of them, never copied.

Where a function takes a list it does all of it in one call. Results have the same bits on every machine:
docs/reference/python-kernels.md and docs/reference/numerics.md say more. `requires_grad` does not matter: tensors are
memory here, and torch's version counters say that they were written.
"""
from typing import NamedTuple

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
join = _kernels.join
matmul = _kernels.matmul
optimizer_step = _kernels.optimizer_step
pack = _kernels.pack
packed_bytes = _kernels.packed_bytes
remainder_bytes = _kernels.remainder_bytes
scale = _kernels.scale
set_num_threads = _kernels.set_num_threads
split = _kernels.split
unpack = _kernels.unpack
zero = _kernels.zero


class Losses(NamedTuple):
    """How many elements a cast to a 16-bit type would lose."""

    zeros: int  # become 0
    subnormals: int  # keep fewer bits
    infinities: int  # are finite, and become infinite


class Statistics(NamedTuple):
    """What the elements of tensors are like: amp_statistics of amp_kernels.h, all tensors of a call together."""

    elements: int
    zeros: int
    nans: int
    plus_infinities: int
    minus_infinities: int
    largest: float  # |x|, of those that are finite; 0.0: there is none
    least: float  # |x|, of those that are not 0
    sum: float
    sum_squares: float
    binades: dict[int, int]  # elements from 2^key on and below 2^(key + 1)
    memory: bytes  # the C structure

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items() if name != "memory")
        return f"Statistics({told})"

    def lost(self, dtype: str, scale: float = 1.0) -> Losses:
        """What a cast of src * scale to "float16" or "bfloat16" would lose, exactly; the scale is a power of two."""
        return Losses(*_kernels.statistics_losses(self.memory, str(dtype).removeprefix("torch."), scale))


def statistics(src):
    """Counts, extremes, sums and a histogram of exponents of one tensor or a list of them, in one pass. CPU alone."""
    return Statistics(*_kernels.statistics(src))


__all__ = [
    "Losses", "Statistics", "axpby", "cast", "check", "clip_norm", "clip_value", "copy", "cpu_flags",
    "first_nonfinite", "get_num_threads", "join", "l2norm", "l2norms", "matmul", "optimizer_step", "pack",
    "packed_bytes", "remainder_bytes", "scale", "set_num_threads", "split", "statistics", "unpack", "zero",
]
