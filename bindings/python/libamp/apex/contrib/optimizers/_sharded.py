# SPDX-License-Identifier: Apache-2.0
"""Base of DistributedFusedAdam and DistributedFusedLAMB (ZeRO-2). Gradients are reduced to the rank that owns their
shard while backward computes the next ones. State and masters belong to the shard. Parameters are gathered.

All ranks send the same buckets in the same order, whichever gradients they have. Each backward sends all of them once,
or each step if gradients wait for it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from libamp.torch.optimizers.base import loss_of
from libamp.torch.parallel.distributed import on_gradient
from libamp.torch.parallel.flat import flat_dist_call

from .... import kernels
from . import _checkpoint
from ._buckets import Bucket, Gathering, Kind, is_dense

_TYPES = (torch.float32, torch.float16, torch.bfloat16)


class ShardedOptimizer(torch.optim.Optimizer):
    """Base class. A derived class defines its rule in _update, and _prepare before it."""

    _step_supports_amp_scaling = True  # torch's GradScaler hands itself to step
    _custom_amp_unscale_grads = True
    _moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        groups: tuple[Any, Any, Any] = (None, None, None),
        dtype: torch.dtype = torch.float32,
        grad_sync_dtype: torch.dtype | None = None,
        param_sync_dtype: torch.dtype | None = None,
        average_grad_sync: bool = True,
        overlap_grad_sync: bool = True,
        bucket_cap_mb: float = 100.0,
        pipeline_size: int = 2,
        store_params: bool = True,
        store_param_remainders: bool = False,
    ) -> None:
        self.dtype = dtype
        self.grad_sync_dtype = dtype if grad_sync_dtype is None else grad_sync_dtype
        self.param_sync_dtype = dtype if param_sync_dtype is None else param_sync_dtype
        self._check_types(self.dtype, self.grad_sync_dtype)
        self.average_grad_sync, self.overlap_grad_sync = average_grad_sync, overlap_grad_sync
        self.bucket_cap_mb, self.pipeline_size = bucket_cap_mb, max(1, pipeline_size)
        self.store_params, self.store_param_remainders = store_params, store_param_remainders
        self.greedy_grad_copy = True
        self._join_groups(*groups)
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[torch.Tensor, Bucket] = {}
        self._hooks: list[Any] = []
        self._steps = 0
        self._reset()
        super().__init__(params, defaults)

    def _check_types(self, dtype: torch.dtype, grad_sync_dtype: torch.dtype) -> None:
        if dtype not in _TYPES or grad_sync_dtype not in _TYPES:
            raise ValueError(
                f"{type(self).__name__}: dtype and grad_sync_dtype are float32, float16 or bfloat16, and {dtype} and "
                f"{grad_sync_dtype} were given"
            )

    def _join_groups(self, process_group: Any, distributed: Any, redundant: Any) -> None:
        """Arranges the ranks as a grid: shards along one group, copies along the other."""
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(f"{type(self).__name__} needs torch.distributed.init_process_group before it")
        self.process_group = dist.group.WORLD if process_group is None else process_group
        self.distributed_process_group = self.process_group if distributed is None else distributed
        self.redundant_process_group = redundant
        self.process_group_size = dist.get_world_size(self.process_group)
        self.distributed_size = dist.get_world_size(self.distributed_process_group)
        self.distributed_rank = dist.get_rank(self.distributed_process_group)
        self.redundant_size = 1 if redundant is None else dist.get_world_size(redundant)
        if self.process_group_size != self.distributed_size * self.redundant_size:
            raise RuntimeError(
                f"{type(self).__name__}: the ranks in process_group, {self.process_group_size}, are not "
                f"{self.distributed_size} in distributed_process_group times {self.redundant_size} in "
                "redundant_process_group"
            )

    # ---- parameters ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        params = list(self.param_groups[-1]["params"])
        try:
            self._agree_on(params)
        except BaseException:
            self.param_groups.pop()
            raise
        root = int(dist.distributed_c10d.get_global_rank(self.process_group, 0))
        flat_dist_call([param.detach() for param in params], dist.broadcast, (root, self.process_group))
        this = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            owner = this()
            if owner is not None:
                owner._arrive(param)

        self._hooks += [on_gradient(param, hook) for param in params if param.requires_grad]

    def _agree_on(self, params: list[torch.Tensor]) -> None:
        """Raises on all ranks an error that any of them has, so that none waits for a failed one."""
        shapes = [(tuple(param.shape), str(param.dtype)) for param in params]
        told: list[Any] = [None] * self.process_group_size
        dist.all_gather_object(told, (self._refusal(params), shapes), group=self.process_group)
        for rank, (refusal, others) in enumerate(told):
            if refusal is None and others != told[0][1]:
                refusal = "its parameters differ from rank 0's in number, order, shape or type"
            if refusal is not None:
                raise RuntimeError(f"{type(self).__name__}: on rank {rank} of the group, {refusal}")

    def _refusal(self, params: list[torch.Tensor]) -> str | None:
        devices = {param.device for group in self.param_groups for param in group["params"]}
        if len(devices) > 1:
            return f"parameters lie on several devices ({', '.join(sorted(map(str, devices)))}), and a shard on one"
        for i, param in enumerate(params):
            if not param.is_floating_point():
                return f"parameter {i} is {param.dtype}: only floating types are trained"
            if not is_dense(param):
                return f"parameter {i} has holes or shared elements in memory (strides {param.stride()}): clone it"
        return None

    def parameters(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def init_params(
        self,
        params: Iterable[torch.Tensor] | torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        grad_sync_dtype: torch.dtype | None = None,
        param_sync_dtype: torch.dtype | None = None,
    ) -> None:
        """Puts parameters into buckets. Without this call it happens at the first backward, last parameters first. All
        ranks must call it with the same parameters."""
        if dtype not in (None, self.dtype):
            raise ValueError(f"{type(self).__name__}.init_params: dtype is {self.dtype} for all parameters")
        self._check_types(self.dtype, grad_sync_dtype or self.grad_sync_dtype)
        listed = [params] if isinstance(params, torch.Tensor) else params
        groups = {param: i for i, group in enumerate(self.param_groups) for param in group["params"]}
        listed = reversed(list(groups)) if listed is None else listed
        new = [param for param in listed if param in groups and param not in self._bucket_of]
        for param in new:
            self._add(param, groups[param], grad_sync_dtype, param_sync_dtype)
        if new and len(self._bucket_of) == len(groups):
            self._cut()

    def init_params_bucket(self, params: Iterable[torch.Tensor] | torch.Tensor, **types: Any) -> None:
        """Puts these parameters into buckets without others."""
        self._cut()
        self.init_params(params, **types)
        self._cut()

    def _add(self, param: torch.Tensor, group: int, grads: torch.dtype | None, params: torch.dtype | None) -> None:
        sent = self.param_sync_dtype if params is None else params
        if sent not in (torch.float16, torch.bfloat16):  # integers: the bytes of the parameter
            sent = param.dtype if param.dtype in _TYPES else torch.float32
        kind = Kind(param.dtype, self.dtype, grads or self.grad_sync_dtype, sent)
        capacity = self.bucket_cap_mb * 2**20 / torch.finfo(kind.grads_sent).bits * 8
        bucket = next((b for b in self._buckets if b.kind == kind and not b.closed), None)
        if bucket is not None and bucket.filled + param.numel() > capacity:
            bucket.cut(self.distributed_size, self.distributed_rank, self._moments)
            bucket = None
        if bucket is None:
            bucket = Bucket(kind, self._masters_of(kind))
            self._buckets.append(bucket)
        bucket.add(param, group)
        self._bucket_of[param] = bucket

    def _masters_of(self, kind: Kind) -> str | None:
        if self.store_param_remainders and kind.params == kind.params_sent == torch.bfloat16:
            return "remainders"
        whole = kind.params == kind.params_sent == kind.state == torch.float32
        return "stored" if (self.store_params or self.store_param_remainders) and not whole else None

    def _cut(self) -> None:
        for bucket in self._buckets:
            if not bucket.closed:
                bucket.cut(self.distributed_size, self.distributed_rank, self._moments)

    # ---- gradients ----

    def _reset(self) -> None:
        for bucket in self._buckets:
            bucket.forget()
        self._in_backward, self._sent = False, 0  # number of buckets sent in this backward
        self._grad_scale: Any = 1.0  # factor of the shard's gradients
        self._known_norm: tuple[torch.Tensor, torch.Tensor] | None = None

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=set_to_none)
        self._reset()

    @property
    def _waits(self) -> bool:
        """Returns True if gradients remain in the parameters until step, because amp unscales and checks them there."""
        return not self.greedy_grad_copy or hasattr(self, "_amp_stash")

    @torch.no_grad()
    def _arrive(self, param: torch.Tensor) -> None:
        """Records an accumulated gradient."""
        if self._waits:
            return
        if param not in self._bucket_of:
            self.init_params()
        self._known_norm = None
        if not self.overlap_grad_sync:
            self._bucket_of[param].collect(param)
            return
        if not self._in_backward:
            self._begin_backward()
        self._bucket_of[param].collect(param)
        while self._sent < len(self._buckets) and not self._buckets[self._sent].waiting:
            self._send(self._buckets[self._sent])

    def _begin_backward(self) -> None:
        self._finish()
        for bucket in self._buckets:
            bucket.expect()
        self._in_backward = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    @torch.no_grad()
    def _end_backward(self) -> None:
        for bucket in self._buckets[self._sent :]:
            bucket.collect_all()
            self._send(bucket)
        self._in_backward, self._sent = False, 0

    def _send(self, bucket: Bucket) -> None:
        self._sent += 1
        bucket.send(self.distributed_process_group, self.process_group_size if self.average_grad_sync else 1)

    def _finish(self) -> None:
        for bucket in self._buckets:
            bucket.finish(self.redundant_process_group)

    @contextlib.contextmanager
    def no_sync(self, greedy_grad_copy: bool = False) -> Iterator[None]:
        """Opens a block. Gradients of its backwards are sent with the next backward or at step."""
        before = self.greedy_grad_copy, self.overlap_grad_sync
        self.greedy_grad_copy, self.overlap_grad_sync = greedy_grad_copy, False
        try:
            yield
        finally:
            self.greedy_grad_copy, self.overlap_grad_sync = before

    @torch.no_grad()
    def grad_sync(self) -> None:
        """Waits until the shard's gradients are the sum or mean of all ranks."""
        self.init_params()
        if self._in_backward:  # and that failed
            self._end_backward()
        self._finish()
        left = any(bucket.flat is not None or bucket.grads is None for bucket in self._buckets)
        if left or any(param.grad is not None for param in self._bucket_of):
            self._known_norm = None
            self._end_backward()
            self._finish()

    def param_sync(self) -> None:
        """Does nothing: parameters are whole after each step."""

    def _norm(self, parameters: Iterable[torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the norm of the reduced gradients, and whether some are not finite. All ranks get the same."""
        self.grad_sync()
        chosen = None if parameters is None else set(parameters)
        if chosen is not None and not chosen <= self._bucket_of.keys():
            raise RuntimeError(f"{type(self).__name__}.grad_norm: a parameter is not the optimizer's")
        if chosen is None and self._known_norm is not None:
            return self._known_norm
        shards = [
            bucket.grads[span.shard]  # type: ignore[index]
            for bucket in self._buckets
            for span in bucket.spans()
            if chosen is None or span.param in chosen
        ]
        device = next(iter(self._bucket_of)).device
        norm, found = (torch.zeros(1, dtype=torch.float32, device=device) for _ in range(2))
        if shards:
            kernels.check(shards, 1.0, norm=norm, found_inf=found)
        both = torch.cat([torch.where(found != 0, torch.zeros_like(norm), norm).double().square(), found.double()])
        dist.all_reduce(both, group=self.distributed_process_group)
        infinite = both[1] != 0
        result = torch.where(infinite, torch.full_like(both[0], torch.inf), both[0].sqrt()).float(), infinite
        if chosen is None:
            self._known_norm = result
        return result

    @torch.no_grad()
    def grad_norm(
        self, parameters: Iterable[torch.Tensor] | None = None, norm_type: float = 2.0, force: bool = False
    ) -> torch.Tensor:
        """Returns the norm of all gradients, or of those of some parameters. force is ignored."""
        if float(norm_type) != 2.0:
            raise ValueError(f"{type(self).__name__}: norm_type is 2, and {norm_type} was given")
        return self._norm(parameters)[0] * self._grad_scale

    @torch.no_grad()
    def clip_grad_norm(
        self, max_norm: float, parameters: Iterable[torch.Tensor] | None = None, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Makes the step limit the norm of the gradients to max_norm. Returns the norm before."""
        if not max_norm > 0:
            raise ValueError(f"{type(self).__name__}: max_norm must be above 0, and is {max_norm}")
        norm = self.grad_norm(parameters, norm_type)
        self._grad_scale = self._grad_scale * torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm

    # ---- torch's GradScaler ----

    @torch.no_grad()
    def unscale_grads(
        self, inv_scale: torch.Tensor | None = None, *unused: Any, grad_scaler: Any = None
    ) -> dict[torch.device, torch.Tensor]:
        """Unscales the gradients, as `scaler.unscale_(optimizer)` does for other optimizers. inv_scale: factor by
        hand."""
        state = None
        if grad_scaler is not None and grad_scaler.is_enabled():
            if inv_scale is not None:
                raise ValueError("unscale_grads takes inv_scale or grad_scaler, not both")
            state = grad_scaler._per_optimizer_states[id(self)]
            if state["stage"].name != "READY":
                raise RuntimeError("unscale_grads was called already, or step was, since the scaler's last update")
            inv_scale = grad_scaler._get_scale_async().double().reciprocal().float()
        if inv_scale is None:
            raise ValueError("unscale_grads needs inv_scale or an enabled grad_scaler")
        infinite = self._norm()[1]
        found = {infinite.device: infinite.float()}
        if state is not None:
            state["found_inf_per_device"], state["stage"] = found, type(state["stage"]).UNSCALED
        self._grad_scale = self._grad_scale * torch.as_tensor(inv_scale, device=infinite.device).reshape(())
        return found

    def _overflowed(self, grad_scaler: Any) -> bool:
        if grad_scaler is None or not grad_scaler.is_enabled():
            return False
        state = grad_scaler._per_optimizer_states[id(self)]
        if state["stage"].name == "READY":
            self.unscale_grads(grad_scaler=grad_scaler)
        elif not state["found_inf_per_device"] or self._known_norm is None:
            raise RuntimeError(
                f"{type(self).__name__}: scaler.unscale_(optimizer) has not found the gradients, which are in shards: "
                "call optimizer.unscale_grads(grad_scaler=scaler) in its place, and optimizer.clip_grad_norm(...) after"
            )
        return any(bool(found) for found in state["found_inf_per_device"].values())

    # ---- step ----

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """Steps and consumes the gradients. grad_scaler: if enabled, it unscales and skips on all ranks or none."""
        loss = loss_of(closure)
        self.grad_sync()
        if not self._overflowed(grad_scaler):
            self._prepare()
            self._step_buckets()
            self._steps += 1
        self._reset()
        return loss

    def _step_buckets(self) -> None:
        under_way: deque[tuple[Bucket, Gathering]] = deque()
        for bucket in reversed(self._buckets):  # the order in which forward needs them
            masters = bucket.masters()
            self._update(bucket, masters)
            bucket.keep(masters)
            under_way.append((bucket, Gathering(bucket.as_sent(masters), self.distributed_process_group)))
            while len(under_way) >= self.pipeline_size or (bucket is self._buckets[0] and under_way):
                done, gathering = under_way.popleft()
                done.put(gathering.wait())

    def _prepare(self) -> None:
        """Runs before the update of the first bucket."""

    def _update(self, bucket: Bucket, masters: torch.Tensor) -> None:
        """Steps the shard in place."""
        raise NotImplementedError

    def _factor(self, bucket: Bucket) -> torch.Tensor:
        """Returns the factor by which the kernels multiply gradients."""
        return torch.as_tensor(self._grad_scale, dtype=torch.float32, device=bucket.device).reshape(1)

    # ---- checkpoints ----

    def state_dict(
        self, *, state_dict_format: int | None = None, gather_on_root: bool = True
    ) -> dict[str, Any] | None:
        """Returns the state. All ranks must call it.

        Format 2, the default, has whole tensors for each parameter on every rank. Any number of ranks can load it.
        Format 1 has shards for the same number of ranks: rank 0 gets all of them, or each rank its own.
        """
        if state_dict_format not in (None, 1, 2):
            raise ValueError(f"{type(self).__name__}.state_dict: there are formats 1 and 2, not {state_dict_format}")
        groups = super().state_dict()["param_groups"]
        if state_dict_format == 1:
            return _checkpoint.save_shards(self, groups, gather_on_root)
        return _checkpoint.save_whole(self, groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of either format. Parameters become the rounded masters. All ranks must call it."""
        if "gathered_states" in state_dict or state_dict.get("format") == 1:
            state_dict = _checkpoint.own_shards(self, state_dict)
            super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
            _checkpoint.load_shards(self, state_dict)
        elif state_dict.get("format", 2) == 2:
            super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
            _checkpoint.load_whole(self, state_dict)
        else:
            raise ValueError(f"{type(self).__name__}: there are formats 1 and 2, not {state_dict['format']}")

