# SPDX-License-Identifier: Apache-2.0
"""Chooses bits for saved tensors by the effect of their rounding on the gradients (Liu et al. 2022, GACT).

With b bits the step of a tensor's codes is proportional to 1 / (2^b - 1), and the variance of the gradient due to its
rounding to c / (2^b - 1)^2. c is measured: the gradient of all parameters is computed exactly, and once for each tensor
with only that one in 2 bits. c is the squared distance of the two divided by the squared norm of the first, which a
loss scale does not change. All tensors begin with 2 bits. Those that remove most variance for each added bit get 4,
then 8, within the budget.
"""
from __future__ import annotations

import heapq
import math
import weakref
from typing import Any

import torch

from .packed import Original, Store

_PROBE = 2
_NEXT = {2: 4, 4: 8}


def allot(costs: dict[Any, float], sizes: dict[Any, int], budget: float) -> dict[Any, int]:
    """Returns the bits of each, so that sum(costs / (2^bits - 1)^2) is small and sum(bits * sizes) at most budget *
    sum(sizes)."""
    bits = dict.fromkeys(costs, 2)
    left = (budget - 2) * sum(sizes.values())
    heap: list[tuple[float, int, Any]] = []

    def offer(number: int, key: Any) -> None:
        more = _NEXT.get(bits[key])
        if more is not None:
            gain = costs[key] * (1 / (2 ** bits[key] - 1) ** 2 - 1 / (2**more - 1) ** 2)
            heapq.heappush(heap, (-gain / ((more - bits[key]) * sizes[key]), number, key))

    for number, key in enumerate(costs):
        offer(number, key)
    while heap:
        _, number, key = heapq.heappop(heap)
        more = (_NEXT[bits[key]] - bits[key]) * sizes[key]
        if more <= left:
            left -= more
            bits[key] = _NEXT[bits[key]]
            offer(number, key)
    return bits


class Budget:
    """Measures over `steps` forwards and chooses bits. budget: average bits an element."""

    def __init__(self, budget: float, steps: int) -> None:
        if not 2 <= budget <= 8:
            raise ValueError(f"amp.compress_activations: budget is {budget}, and must be from 2 to 8 bits an element")
        self._budget, self._left = budget, steps
        self._costs: dict[Any, float] = {}
        self._sizes: dict[Any, int] = {}
        self.chosen: dict[Any, int] = {}
        self._sites: dict[Any, weakref.ref[Original]] = {}  # of this forward

    @property
    def done(self) -> bool:
        """Returns True once the bits are chosen."""
        return self._left == 0

    def begin(self) -> None:
        """Begins a forward."""
        self._sites.clear()

    def bits_of(self, site: Any, source: torch.Tensor) -> Any:
        """Returns the bits of a tensor to be saved: an Original during the measurement, 4 for a new tensor after it."""
        if self.done:
            return self.chosen.get(site, 4)
        original = Original(source, site)
        self._sites[site] = weakref.ref(original)
        return original

    def measure(self, loss: torch.Tensor, store: Store) -> None:
        """Measures before the backward of a forward: one extra backward for each tensor, and one more."""
        model = store.model()
        if self.done or model is None or not self._sites:
            return
        params = [param for param in model.parameters() if param.requires_grad]

        def gradients() -> list[torch.Tensor | None]:
            return list(torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True))

        exact = gradients()
        norm = _squares(exact)
        if not 0 < norm < math.inf:  # of another model's loss, or an overflow: measure the next one
            return
        for site, ref in self._sites.items():
            original = ref()
            if original is None:
                continue
            original.bits = _PROBE
            try:
                changed = gradients()
            finally:
                original.bits = 0
            pairs = zip(changed, exact, strict=True)
            cost = _squares([None if a is None or b is None else a.float() - b.float() for a, b in pairs])
            self._costs[site] = self._costs.get(site, 0.0) + cost / norm
            self._sizes[site] = original.size
        self._left -= 1
        if self.done:
            self.chosen = allot(self._costs, self._sizes, self._budget)


def _squares(tensors: list[torch.Tensor | None]) -> float:
    return math.fsum(each.double().square().sum().item() for each in tensors if each is not None)
