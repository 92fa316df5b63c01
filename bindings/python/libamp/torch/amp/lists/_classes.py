# SPDX-License-Identifier: Apache-2.0
"""The names of Apex's lists, and the classes in the library's list for the functions of a module."""
from __future__ import annotations

from .... import _core

FUNCTIONAL, TORCH, TENSOR = 1, 2, 4  # bits of amp_list_op.modules
LOWER, FP32, PROMOTE, SEQUENCE, BANNED, LEAVE = 1, 2, 3, 4, 5, 6
CLASSES = {
    "FP16_FUNCS": LOWER,
    "BFLOAT16_FUNCS": LOWER,
    "FP32_FUNCS": FP32,
    "CASTS": PROMOTE,
    "SEQUENCE_CASTS": SEQUENCE,
    "BANNED_FUNCS": BANNED,
}
_APEX = 1


def names(module: int, op_class: int) -> list[str]:
    """Returns the functions of this class in a module, in the order of the list."""
    return [name for name, modules, fp16, _ in _core.list_ops(_APEX) if modules & module and fp16 == op_class]
