# SPDX-License-Identifier: Apache-2.0
"""Follows an inf or NaN back through the ops of an iteration to the place where it began."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .watch import Cause, Op


@dataclass
class Outside:
    """A tensor that no op of the iteration made."""

    kind: str  # "weight" or "batch"
    subject: str
    size: int = -1  # index of its largest value. The number of values that are not finite follows it
    elements: int = 0


@dataclass
class Node:
    """A call of an op."""

    op: Op
    sources: list[int]  # nodes that made its inputs, or -1 - index of Outside
    says_inf: bool  # an argument is inf or NaN: masked_fill(mask, -inf)
    size: int = -1  # index of its largest |output|


class _Flow:
    """The values of an iteration. meant: nodes and outside tensors whose -inf are no fault."""

    def __init__(self, nodes: list[Node], outside: list[Outside], values: list[float]) -> None:
        self.nodes, self.outside, self.values = nodes, outside, values
        self.meant: set[int] = set()

    def pardon(self) -> None:
        """The loss is finite: what gave -inf in forward, a mask or the logarithm of one, became finite behind it. A
        backward that hands such -inf on is no overflow either."""
        self.meant.update(source for source in range(-len(self.outside), 0) if self.value(source) == -math.inf)
        for index, node in enumerate(self.nodes):
            if self.value(index) == -math.inf and (
                not node.op.backward or any(source in self.meant for source in node.sources if source < index)
            ):
                self.meant.add(index)

    def value(self, source: int) -> float:
        size = self.nodes[source].size if source >= 0 else self.outside[-1 - source].size
        return self.values[size] if size >= 0 else 0.0

    def bad(self, sources: list[int]) -> list[int]:
        """Returns the sources that are not finite: NaN first, -inf last, and of these a mask last."""
        found = [source for source in sources if source not in self.meant and not math.isfinite(self.value(source))]
        return sorted(found, key=self._rank)

    def _rank(self, source: int) -> int:
        value = self.value(source)
        if value != -math.inf:
            return 0 if math.isnan(value) else 1
        return 3 if source < 0 or self.nodes[source].says_inf else 2

    def origin(self, index: int) -> int:
        """Returns the node or outside tensor where the value of a node began."""
        while index >= 0:
            node = self.nodes[index]
            # memory that was written again has its last writer, which may come later: only earlier ones are followed
            before = self.bad([source for source in node.sources if source < index])
            if not before:
                return index
            if math.isnan(self.value(index)) and not math.isnan(self.value(before[0])):
                first = self.origin(before[0])
                # an inf that the script wrote is no overflow: the op that made a NaN of it is the origin
                return index if first >= 0 and self.nodes[first].says_inf else first
            index = before[0]
        return index


def find(nodes: list[Node], outside: list[Outside], values: list[float], loss: int) -> Cause | None:
    """Returns the cause of the first value that is not finite and reaches the loss or a gradient, else None."""
    flow = _Flow(nodes, outside, values)
    if loss >= 0 and not math.isfinite(flow.value(loss)):
        return _cause(flow, flow.origin(loss), loss)
    flow.pardon()
    for index, node in enumerate(nodes):
        if node.op.backward and flow.bad([index]) and not node.says_inf:
            return _cause(flow, flow.origin(index), index)
    return None


def _cause(flow: _Flow, origin: int, reached: int) -> Cause:
    value = "NaN" if math.isnan(flow.value(origin)) else str(flow.value(origin))
    if origin < 0:
        made = flow.outside[-1 - origin]
        op = flow.nodes[reached].op
        cause = Cause(0, made.kind, made.subject, value, place=op.place)
        cause.count = int(flow.values[made.size + 1])
        cause.share = cause.count / made.elements
        return cause
    node = flow.nodes[origin]
    op = node.op
    finite = [size for source in node.sources if math.isfinite(size := flow.value(source))]
    cause = Cause(0, "gradient" if op.backward else "op", op.name, value, op.module, op.kind, op.place)
    cause.input_largest, cause.finite = max(finite, default=0.0), len(finite) == len(node.sources)
    cause.output_dtype, cause.scalars = op.output, list(op.scalars)
    return cause
