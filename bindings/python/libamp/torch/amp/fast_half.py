# SPDX-License-Identifier: Apache-2.0
"""Products in 16 bits at FP32's speed on CPUs without 16-bit units, for scripts without amp.initialize.

    libamp.torch.fast_half()                               from now on
    with libamp.torch.fast_half():                         in a block
        with torch.autocast("cpu", torch.float16):
            loss = criterion(model(x), y)
"""
from __future__ import annotations

from . import patching, product_rules


class fast_half:
    """Replaces torch's 16-bit products on the CPU, where they are slower than FP32, in the whole process: linear,
    matmul and its relatives, convolutions, attention and recurrent layers, in models after `.half()` or `.bfloat16()`,
    and under torch.autocast("cpu"). Types do not change. Sums are FP32, each result is rounded once
    (docs/reference/numerics.md). Calls in FP32 and on other devices pay for one look at a type, 30 ns.

    It is in force from the call until remove(), or until the end of a `with` block. Objects nest. `types`: the 16-bit
    types of replaced products, () on a CPU that is fast in both.
    """

    def __init__(self) -> None:
        self.types = product_rules.slow_types()
        if self.types:
            patching.install_products(self, self.types, heeds_autocast=True)

    def remove(self) -> None:
        """Restores torch's functions, unless something else needs them."""
        patching.uninstall(self)

    def __enter__(self) -> fast_half:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
