# SPDX-License-Identifier: Apache-2.0
"""libamp's kernels on tensors in memory: of torch, NumPy or any library with `__dlpack__`. They are never copied.

A function takes one tensor or a list, and works on a list in one call. Results have the same bits on every machine: see
docs/reference/python-kernels.md and docs/reference/numerics.md. `requires_grad` is ignored. torch's version counters
record the writes.
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
decode_moment = _kernels.decode_moment
encode_moment = _kernels.encode_moment
first_nonfinite = _kernels.first_nonfinite
get_num_threads = _kernels.get_num_threads
l2norm = _kernels.l2norm
l2norms = _kernels.l2norms
join = _kernels.join
matmul = _kernels.matmul
optim_key = _kernels.optim_key
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
    """Number of elements that a cast to a 16-bit type would change beyond rounding."""

    zeros: int  # nonzero elements that become 0
    subnormals: int  # elements that become subnormal, with fewer bits
    infinities: int  # finite elements that become infinite


class Statistics(NamedTuple):
    """Statistics of the elements of all tensors of a call, as amp_statistics in amp_kernels.h."""

    elements: int
    zeros: int
    nans: int
    plus_infinities: int
    minus_infinities: int
    largest: float  # largest finite absolute value, 0.0 if there is none
    least: float  # least nonzero absolute value
    sum: float
    sum_squares: float
    binades: dict[int, int]  # number of elements from 2^key to below 2^(key + 1)
    memory: bytes  # the C structure

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items() if name != "memory")
        return f"Statistics({told})"

    def lost(self, dtype: str, scale: float = 1.0) -> Losses:
        """Returns the exact Losses of a cast of src * scale. dtype: "float16" or "bfloat16", or torch's. scale: a power
        of two."""
        return Losses(*_kernels.statistics_losses(self.memory, str(dtype).removeprefix("torch."), scale))


def statistics(src):
    """Returns the Statistics of one tensor or a list of them: counts, extremes, sums and a histogram of exponents. It
    reads each element once. CPU only."""
    return Statistics(*_kernels.statistics(src))


__all__ = [
    "Losses", "Statistics", "axpby", "cast", "check", "clip_norm", "clip_value", "copy", "cpu_flags",
    "decode_moment", "encode_moment", "first_nonfinite", "get_num_threads", "join", "l2norm", "l2norms", "matmul",
    "optim_key", "optimizer_step", "pack", "packed_bytes", "remainder_bytes", "scale", "set_num_threads", "split",
    "statistics", "unpack", "zero",
]
