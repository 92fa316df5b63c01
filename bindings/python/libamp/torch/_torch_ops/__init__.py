# SPDX-License-Identifier: Apache-2.0
"""
libamp's list kernels with torch's own ops, for tensors of any device that torch has. They replace `libamp.kernels` on
devices without CPU kernels or plugin. One function for each kind of `struct amp__list_call` (src/kernels/backend.h),
under its name:

    cast(dst, src, only_if=None)               CAST        dst = src, nothing if only_if is 0
    zero(dst)                                  ZERO
    scale(dst, src, by, *found)                SCALE       dst = src * by
    axpby(dst, a, x, b, y, *found)             AXPBY       dst = a * x + b * y
    axpby(..., y_was_reported=True)            ADD         does not report again what y brought
    check(src, scale, factor, norm=, norms=)   CHECK       norms of src * scale * factor; reports too
    clamp(dst, src, limit)                     CLAMP       dst = src, within limit of 0
    round_through(dst, src, low, *found)       ROUND       FP32 rounded through fp16 or bf16
    reconcile(dst, src, low=, norms=)          RECONCILE   an FP32 master takes over what the host wrote
    statistics(src, out)                       STATISTICS  adds to amp_statistics structures
    optimizer_step(rule, params, grads, ...)   OPTIM       a step of a fused optimizer

SPLIT, JOIN and PACK have no function: they need the plugin.

Lists are of torch's tensors, strided, of one device, of fp32, fp16, bf16 and fp64 in any mixture, contiguous or not,
empty ones too. Tensor i of one list has the shape of tensor i of the others. dst may be src; the same tensor object is
not copied. Autograd does not record, and version counters rise.

A number (`by`, `a`, `b`, `scale`, `factor`, `inv_scale`, `grad_factor`, `lr`) is a Python number or a tensor of one
element on the device: `factor_of` makes one from an amp_factor. `found` are keywords: found_inf, a tensor of one float,
raised to 1 where an element of the result is infinite or NaN; first, a tensor of one int32 (a uint32's bits), lowered
to the least base + i of such a tensor i; base. Nothing here waits for the device.

Numbers. FP32 arithmetic, each operation rounded once, in the order of docs/reference/numerics.md: on a device whose
operations are IEEE 754's the bits of the CPU's kernels. Exceptions: the payload of a NaN; fp64 to 16 bits, which torch
rounds twice; norms, whose squares are summed in double in torch's order (in scaled FP32 where the device has no FP64:
MPS); 1 - beta^t where the number of steps is a tensor, within an ulp (FP32 alone: four); and torch's square root on the
CPU, which is MKL's, within an ulp.
"""

from __future__ import annotations

from .lists import axpby, cast, clamp, factor_of, reconcile, round_through, scale, zero
from .norms import check
from .optim import optimizer_step
from .statistics import statistics

__all__ = [
    "axpby",
    "cast",
    "check",
    "clamp",
    "factor_of",
    "optimizer_step",
    "reconcile",
    "round_through",
    "scale",
    "statistics",
    "zero",
]
