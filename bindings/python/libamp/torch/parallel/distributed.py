# SPDX-License-Identifier: Apache-2.0
"""Data parallel training over torch.distributed, with the interface of apex.parallel.

Gradients are all-reduced during backward. A hook on each parameter reports its gradient. Once a bucket has all its
gradients, it is sent while backward computes the next ones. All ranks send the buckets in one order, which rank 0
records in its first backward. That first backward is reduced as a whole at its end. A gradient that this rank does not
have counts as zeros, and remains None if no rank has it. Parameters that are unused on some ranks are therefore
supported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .flat import (
    apply_flat_dist_call,
    extract_tensors,
    flat_dist_call,
    flatten,
    for_the_wire,
    split_by_type,
    tensors_of,
    unflatten,
)


def on_gradient(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> tuple[Any, Any]:
    """Calls `call(parameter)` after each accumulation into parameter.grad. Returns a handle and an object that must
    stay alive."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(call), None
    # torch 2.0 has a hook on the node that accumulates, which the caller must keep alive.
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return node.register_hook(lambda *_: call(parameter)), node


def _inside_backward() -> bool:
    ask = getattr(torch._C, "_current_graph_task_id", None)  # not in torch 2.0
    return ask is not None and bool(ask() != -1)


class _Bucket:
    """Parameters whose gradients are sent together, and their state in the present backward."""

    def __init__(self, indices: Sequence[int], params: Sequence[nn.Parameter]) -> None:
        self.indices = list(indices)
        self.params = [params[index] for index in self.indices]
        self.reset()

    def reset(self) -> None:
        self.waiting = set(self.indices)
        self.flat: torch.Tensor | None = None
        self.missing: list[int] = []  # positions without a gradient on this rank
        self.work: Any = None

    def send(self, group: Any, predivide: float, as_fp32: bool) -> None:
        """Begins the all-reduce. The gradients are followed by a 1 for each gradient that exists. A sum of 0 means that
        no rank has it."""
        grads = []
        for position, param in enumerate(self.params):
            if param.grad is None:
                self.missing.append(position)
                grads.append(torch.zeros_like(param))
            elif param.grad.is_sparse:
                raise RuntimeError("DistributedDataParallel: sparse gradients are not supported")
            else:
                grads.append(param.grad)
        flags = grads[0].new_ones(len(self.params))
        for position in self.missing:
            flags[position] = 0
        flat = for_the_wire(flatten([*grads, flags]), group, as_fp32)
        if predivide != 1.0:
            flat[: flat.numel() - flags.numel()] /= predivide
        self.flat = flat
        self.work = dist.all_reduce(flat, group=group, async_op=True)

    def finish(self, factor: float, retain: bool) -> torch.Tensor:
        """Waits, and copies the results into the gradients. Returns the flat gradients in the type of the
        parameters."""
        assert self.flat is not None
        self.work.wait()
        flat, count = self.flat, len(self.params)
        if flat.is_cuda:
            flat.record_stream(torch.cuda.current_stream(flat.device))
        flags = flat[flat.numel() - count :]
        flat = flat[: flat.numel() - count]
        if factor != 1.0:
            flat *= factor
        flat = flat.to(self.params[0].dtype)
        used = flags.tolist() if self.missing else []  # the only read by the host
        for position, (param, result) in enumerate(zip(self.params, unflatten(flat, self.params), strict=True)):
            if position in self.missing and not used[position]:
                continue
            if param.grad is None or retain:
                param.grad = result if retain else result.clone()
            else:
                param.grad.copy_(result)
        self.reset()
        return flat


class DistributedDataParallel(nn.Module):
    """Wraps a module for data parallel training, with Apex's arguments. Wrap it after amp.initialize. All ranks must
    run backward through the module equally often.

    module: torch.nn.Module. Its parameters become those of rank 0. Buffers remain local. message_size: minimum elements
    of a bucket. delay_allreduce: reduce at the end of backward. allreduce_trigger_params: each of these parameters ends
    a bucket. retain_allreduce_buffers: gradients become views of `allreduce_buffers`. allreduce_always_fp32: add in
    FP32. num_allreduce_streams: number of process groups that take turns. allreduce_communicators: (groups, streams) of
    the caller, the streams are not used. gradient_average: divide by the number of ranks. Without it, clear the
    gradients before each backward. gradient_predivide_factor: divide by this before the sum, by the rest after it.
    gradient_average_split_factor and prof are ignored.

    Raises ValueError for shared_param or options that exclude each other, RuntimeError without
    torch.distributed.init_process_group or for sparse gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        shared_param: Any = None,
        allreduce_trigger_params: Iterable[nn.Parameter] | None = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: tuple[Sequence[Any], Sequence[Any]] | None = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: float | None = None,
        prof: bool = False,
    ) -> None:
        super().__init__()
        if shared_param is not None:
            raise ValueError("shared_param is no longer an option: parameters may be shared as they are")
        if delay_allreduce and (num_allreduce_streams > 1 or allreduce_communicators):
            raise ValueError("num_allreduce_streams and allreduce_communicators need delay_allreduce=False")
        if delay_allreduce and allreduce_trigger_params:
            raise ValueError("allreduce_trigger_params needs delay_allreduce=False")
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("DistributedDataParallel needs torch.distributed.init_process_group before it")
        if dist.get_backend() == "nccl":
            for name, param in module.named_parameters():
                assert param.is_cuda, f"NCCL reduces CUDA tensors only, and {name} is on {param.device}"
        self.module = module
        self.message_size = message_size
        self.delay_allreduce = delay_allreduce
        self.retain_allreduce_buffers = retain_allreduce_buffers
        self.allreduce_always_fp32 = allreduce_always_fp32
        self.num_allreduce_streams = num_allreduce_streams
        self.gradient_average = gradient_average
        self.gradient_predivide_factor = gradient_predivide_factor
        self.prof = prof
        self.allreduce_buffers: list[torch.Tensor] = []
        self._disable_allreduce = False
        self._triggers = list(allreduce_trigger_params or ())
        self._groups = list(allreduce_communicators[0]) if allreduce_communicators else []
        self._begin_from_nothing()
        flat_dist_call([param.detach() for param in module.parameters()], dist.broadcast, (0,))

    def _begin_from_nothing(self) -> None:
        self._params: list[nn.Parameter] = []
        self._kinds: list[Any] = []
        self._hooks: dict[int, tuple[Any, Any]] = {}
        self._buckets: list[_Bucket] | None = None
        self._end_backward()
        self._watch()

    def _end_backward(self) -> None:
        self._arrived: dict[int, None] = {}  # in the order of arrival
        self._sent = 0
        self._queued = False

    def enable_allreduce(self) -> None:
        self._disable_allreduce = False

    def disable_allreduce(self) -> None:
        """Stops the all-reduce until enable_allreduce: gradients accumulate locally."""
        self._disable_allreduce = True

    @property
    def needs_refresh(self) -> bool:
        """Returns True if the order of the buckets is not yet known."""
        return self._buckets is None and not self.delay_allreduce

    # Pickles have the arguments. Hooks, groups and the order of buckets are made again.
    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_params", "_kinds", "_index", "_hooks", "_buckets", "_bucket_of", "_arrived", "_sent", "_queued"):
            state.pop(name, None)
        return {**state, "_groups": [], "allreduce_buffers": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin_from_nothing()

    def _watch(self) -> None:
        """Hooks the present parameters. Another list of them needs another order of buckets."""
        params = [param for param in self.module.parameters() if param.requires_grad]
        kinds = [(id(param), param.dtype, param.device) for param in params]
        if kinds == self._kinds:
            return
        self._params, self._kinds, self._buckets = params, kinds, None
        self._index = {id(param): index for index, param in enumerate(params)}
        for key in self._hooks.keys() - self._index.keys():
            self._hooks.pop(key)[0].remove()
        this = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            owner = this()
            if owner is not None:
                owner._arrive(param)

        for param in params:
            if id(param) not in self._hooks:
                self._hooks[id(param)] = on_gradient(param, hook)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self._disable_allreduce:
            return self.module(*inputs, **kwargs)
        self._watch()
        if self._queued and not _inside_backward():  # the last backward failed on its way
            for bucket in self._buckets or ():
                bucket.reset()
            self._end_backward()
        result = self.module(*inputs, **kwargs)
        # A backward begins here, and not in one that checkpointing nests in it.
        for tensor in tensors_of(result):
            if tensor.requires_grad:
                tensor.register_hook(self._begin_backward)
        return result

    def _begin_backward(self, _grad: torch.Tensor | None = None) -> None:
        if not self._queued and not self._disable_allreduce:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_backward)

    @torch.no_grad()
    def _arrive(self, param: torch.Tensor) -> None:
        """Records an accumulated gradient."""
        index = self._index.get(id(param))
        if index is None or self._disable_allreduce:
            return
        self._begin_backward()
        self._arrived.setdefault(index)
        if self.delay_allreduce or self._buckets is None:
            return
        bucket = self._bucket_of[index]
        if bucket.flat is not None:
            raise RuntimeError(
                "DistributedDataParallel: a parameter got a gradient after its bucket was sent, as nested backward "
                "passes do (reentrant checkpoints that share a parameter); use delay_allreduce=True"
            )
        bucket.waiting.discard(index)
        while self._sent < len(self._buckets) and not self._buckets[self._sent].waiting:
            self._send(self._buckets[self._sent])

    def _send(self, bucket: _Bucket) -> None:
        group = self._groups[self._sent % len(self._groups)] if self._groups else None
        bucket.send(group, self.gradient_predivide_factor, self.allreduce_always_fp32)
        self._sent += 1

    @torch.no_grad()
    def _finish_backward(self) -> None:
        if not self._arrived:  # torch.autograd.grad went through the module
            self._end_backward()
            return
        learning = self._buckets is None
        buckets = self._by_type() if self._buckets is None else self._buckets
        for bucket in buckets[self._sent :]:
            self._send(bucket)
        factor = self.gradient_predivide_factor / dist.get_world_size() if self.gradient_average else 1.0
        results = [bucket.finish(factor, self.retain_allreduce_buffers) for bucket in buckets]
        self.allreduce_buffers = results if self.retain_allreduce_buffers else []
        if learning:
            self._buckets = buckets if self.delay_allreduce else self._agree_on_buckets()
            self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._end_backward()

    def _by_type(self) -> list[_Bucket]:
        """Returns all parameters by type in their own order, which is the same on every rank."""
        groups = split_by_type(self._params).values()
        return [_Bucket([self._index[id(param)] for param in group], self._params) for group in groups]

    def _agree_on_buckets(self) -> list[_Bucket]:
        """Makes the buckets in the order in which gradients arrived on rank 0, absent ones last."""
        order = [*self._arrived, *(index for index in range(len(self._params)) if index not in self._arrived)]
        agreed = torch.tensor(order, dtype=torch.int64, device=self._params[0].device)
        dist.broadcast(agreed, 0)
        if not self._groups:
            # A group of its own, so that messages during backward do not mix with collectives of the model.
            self._groups = [dist.new_group() for _ in range(self.num_allreduce_streams)]
        triggers = {id(param) for param in self._triggers}
        open_buckets: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        elements: dict[tuple[torch.dtype, torch.device], int] = {}
        buckets = []
        for index in agreed.tolist():
            param = self._params[index]
            key = (param.dtype, param.device)
            open_buckets.setdefault(key, []).append(index)
            elements[key] = elements.get(key, 0) + param.numel()
            if id(param) in triggers if triggers else elements[key] >= self.message_size:
                buckets.append(_Bucket(open_buckets.pop(key), self._params))
                elements[key] = 0
        return buckets + [_Bucket(bucket, self._params) for bucket in open_buckets.values()]


class Reducer:
    """Averages gradients over all ranks by hand: of a module, whose parameters become those of rank 0, or of a (nested)
    list of gradients. `reduce()` works in place."""

    def __init__(self, module_or_grads_list: nn.Module | Iterable[Any]) -> None:
        self.module: nn.Module | None = None
        self.grads: list[torch.Tensor] = []
        if isinstance(module_or_grads_list, nn.Module):
            self.module = module_or_grads_list
            flat_dist_call([param.detach() for param in self.module.parameters()], dist.broadcast, (0,))
        else:
            self.grads = tensors_of(list(module_or_grads_list))

    def reduce(self) -> None:
        grads = self.grads
        if self.module is not None:
            grads = [param.grad for param in self.module.parameters() if param.grad is not None]
        flat_dist_call(grads, dist.all_reduce)


__all__ = [
    "DistributedDataParallel",
    "Reducer",
    "apply_flat_dist_call",
    "extract_tensors",
    "flat_dist_call",
    "flatten",
    "split_by_type",
    "unflatten",
]
