# SPDX-License-Identifier: Apache-2.0
"""Buckets of parameters, divided into one shard for each rank: layout and communication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_ALIGNMENT = 64  # the length of a shard is a multiple of this, in elements

# ---- memory ----


def memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of all elements in the order of memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def shaped_like(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of `flat` in the layout of the tensor."""
    return flat.as_strided(tensor.shape, tensor.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns True if the tensor has no gaps and no element twice. It then has a memory order, channels_last
    included."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def split(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns FP32 as bfloat16, ties away from zero, and the 16 remaining bits. Their integer sum has the master's
    bits."""
    bits = master.view(torch.int32)
    high = (bits + 0x8000) >> 16
    return high.to(torch.int16).view(torch.bfloat16), (bits - (high << 16)).to(torch.int16)


def join(params: torch.Tensor, remainders: torch.Tensor) -> torch.Tensor:
    """Returns the master from its two parts."""
    return ((params.view(torch.int16).int() << 16) + remainders.int()).view(torch.float32)


# ---- collectives ----


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)  # no backend knows every type


def _adds_by_itself(flat: torch.Tensor, group: Any) -> bool:
    """Returns True if the backend has a reduce-scatter. gloo has none before PyTorch 2.7, and adds in no defined
    order."""
    return flat.device.type != "cpu" and dist.get_backend(group) != "gloo"


class Reduction:
    """A running reduce-scatter. Without one in the backend each rank sends every other its part, as many bytes as a
    ring would, and adds in FP32 in the order of the ranks."""

    def __init__(self, flat: torch.Tensor, group: Any, divisor: int) -> None:
        self.ranks, self.divisor, self.work = dist.get_world_size(group), divisor, None
        self.sent = self.got = flat  # keeps the sent tensor alive
        self.by_parts = not _adds_by_itself(flat, group)
        if self.ranks == 1:
            return
        if self.by_parts:
            self.got = torch.empty_like(flat)
            self.work = dist.all_to_all_single(_bytes(self.got), _bytes(flat), group=group, async_op=True)
        else:
            flat /= divisor  # before adding: half would overflow
            self.divisor = 1
            self.got = flat.new_empty(flat.numel() // self.ranks)
            self.work = dist.reduce_scatter_tensor(self.got, flat, group=group, async_op=True)

    def wait(self) -> torch.Tensor:
        """Returns this rank's part in FP32."""
        if self.work is not None:
            self.work.wait()
        first, *others = self.got.chunk(self.ranks if self.by_parts else 1)
        total = first.float()
        for part in others:
            total += part
        return total.div_(self.divisor)


class Gathering:
    """A running all-gather of shards."""

    def __init__(self, shard: torch.Tensor, group: Any) -> None:
        ranks = dist.get_world_size(group)
        self.shard = shard.contiguous()
        self.flat = shard.new_empty(ranks * shard.numel())
        parts = list(_bytes(self.flat).chunk(ranks))
        self.work = dist.all_gather(parts, _bytes(self.shard), group=group, async_op=True)

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.flat


# ---- buckets ----


class Kind(NamedTuple):
    """Properties that the parameters of a bucket share."""

    params: torch.dtype  # the parameters' own type
    state: torch.dtype
    grads_sent: torch.dtype
    params_sent: torch.dtype


class Span(NamedTuple):
    """This rank's elements of a parameter: their place in the shard and in the parameter."""

    param: torch.Tensor
    shard: slice
    inside: slice


class Bucket:
    """Whole parameters in sequence, padded so that all shards have the same length.

    masters: storage of FP32 values between steps: "stored", "remainders" (of bfloat16 parameters), or None for the
    parameters themselves.
    """

    def __init__(self, kind: Kind, masters: str | None) -> None:
        self.kind, self.masters_kept = kind, masters
        self.params: dict[torch.Tensor, tuple[int, int]] = {}  # index of the optimizer's group, and the first element
        self.filled = 0
        self.closed = False  # closed to later parameters
        self.state: dict[str, torch.Tensor] = {}
        self.flat: torch.Tensor | None = None  # this rank's gradients
        self.waiting: set[torch.Tensor] = set()  # for a gradient in this backward
        self.reduction: Reduction | None = None
        self.grads: torch.Tensor | None = None  # FP32, the shard's, reduced

    def add(self, param: torch.Tensor, group: int) -> None:
        self.params[param] = group, self.filled
        self.filled += param.numel()

    @torch.no_grad()
    def cut(self, ranks: int, rank: int, moments: Iterable[str]) -> None:
        """Closes the bucket for parameters and makes the state of the shard."""
        step = ranks * _ALIGNMENT
        self.closed, self.ranks, self.rank = True, ranks, rank
        self.shard_size = max(-(-self.filled // step), 1) * _ALIGNMENT
        self.device = next(iter(self.params)).device
        shard = {"dtype": self.kind.state, "device": self.device}
        self.state = {name: torch.zeros(self.shard_size, **shard) for name in moments}
        if self.masters_kept == "stored":
            self.state["param"] = self._own_elements().to(self.kind.state)
        elif self.masters_kept == "remainders":
            self.state["remainder"] = torch.zeros(self.shard_size, dtype=torch.int16, device=self.device)

    @property
    def own(self) -> slice:
        """Returns the shard in the bucket."""
        return slice(self.rank * self.shard_size, (self.rank + 1) * self.shard_size)

    def spans(self, group: int | None = None) -> Iterator[Span]:
        """Yields this rank's part of each parameter. group: index, only parameters of this optimizer group."""
        first, last = self.own.start, self.own.stop
        for param, (its, begin) in self.params.items():
            low, high = max(begin, first), min(begin + param.numel(), last)
            if low < high and group in (None, its):
                yield Span(param, slice(low - first, high - first), slice(low - begin, high - begin))

    def trained(self, group: int) -> list[Span]:
        """Returns the spans of parameters that are not frozen."""
        return [span for span in self.spans(group) if span.param.requires_grad]

    def pieces(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields each parameter and its view of a tensor of the bucket's length."""
        for param, (_, begin) in self.params.items():
            yield param, shaped_like(flat[begin : begin + param.numel()], param)

    def empty(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor of the bucket's length."""
        return torch.zeros(self.ranks * self.shard_size, dtype=dtype, device=self.device)

    # ---- gradients ----

    def expect(self) -> None:
        """Prepares for a backward."""
        self.waiting = {param for param in self.params if param.requires_grad}

    def collect(self, param: torch.Tensor) -> None:
        """Moves a gradient from its parameter to the bucket."""
        grad = param.grad
        self.waiting.discard(param)
        if grad is None:
            return
        if self.flat is None:
            self.flat = self.empty(self.kind.grads_sent)
        begin = self.params[param][1]
        shaped_like(self.flat[begin : begin + param.numel()], param).add_(grad)
        param.grad = None

    def collect_all(self) -> None:
        for param in self.params:
            self.collect(param)

    def send(self, group: Any, divisor: int) -> None:
        """Sends the gradients. An absent one counts as zeros."""
        flat = self.empty(self.kind.grads_sent) if self.flat is None else self.flat
        self.flat, self.reduction = None, Reduction(flat, group, divisor)

    def finish(self, redundant: Any) -> None:
        """Adds the received sum to the shard's gradients."""
        if self.reduction is None:
            return
        result, self.reduction = self.reduction.wait(), None
        if redundant is not None:
            dist.all_reduce(result, group=redundant)
        self.grads = result if self.grads is None else self.grads.add_(result)

    def forget(self) -> None:
        self.flat = self.reduction = self.grads = None
        self.waiting.clear()

    # ---- masters ----

    def _own_elements(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shard = torch.zeros(self.shard_size, dtype=dtype, device=self.device)
        for span in self.spans():
            shard[span.shard] = memory_order(span.param)[span.inside].to(dtype)
        return shard

    def masters(self) -> torch.Tensor:
        """Returns the FP32 values of the shard, which a step may write and keep() stores."""
        if self.masters_kept == "stored":
            return self.state["param"].float()
        if self.masters_kept == "remainders":
            return join(self._own_elements(torch.bfloat16), self.state["remainder"])
        return self._own_elements()

    def keep(self, masters: torch.Tensor) -> None:
        if self.masters_kept == "stored" and masters is not self.state["param"]:
            self.state["param"].copy_(masters)
        elif self.masters_kept == "remainders":
            self.state["remainder"] = split(masters)[1]

    def as_sent(self, masters: torch.Tensor) -> torch.Tensor:
        return split(masters)[0] if self.masters_kept == "remainders" else masters.to(self.kind.params_sent)

    def put(self, flat: torch.Tensor) -> None:
        """Copies the gathered values to the parameters."""
        for param, values in self.pieces(flat):
            param.copy_(values)
