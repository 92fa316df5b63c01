# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.distributed_fused_lamb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from libamp.torch.optimizers.base import number

from ._buckets import Bucket
from ._sharded import ShardedOptimizer

__all__ = ["DistributedFusedLAMB"]


class DistributedFusedLAMB(ShardedOptimizer):
    """FusedLAMB with state, masters and reduced gradients divided between ranks (ZeRO-2), on any device. Norms of
    parameters and updates are summed in double over the shards. Parameters become those of rank 0.

    dwu_group_size: number of neighbouring ranks that share the shards. Other groups hold copies. 0 means the GPUs of
    this machine, or all ranks. overlap_reductions: send gradients during backward. Gradients are divided by the number
    of `set_global_scale`, or by the scale of the scaler that step receives. Other arguments that begin with dwu_, and
    full_ar, fused_norm, fuse_scale, verbose, set_param_views_to_flat_buffer, param_order and nccl_allgather_channels
    are ignored.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        grad_averaging: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        adam_w_mode: bool = True,
        use_nvlamb: bool = False,
        step_supports_amp_scaling: bool = True,
        overlap_reductions: bool = True,
        dwu_group_size: int = 0,
        dwu_num_blocks: int = 4,
        dwu_num_chunks: int = 4,
        dwu_num_rs_pg: int = 1,
        dwu_num_ar_pg: int = 4,
        dwu_num_ag_pg: int = 0,
        fused_norm: bool = False,
        e5m2_allgather: bool = False,
        verbose: bool = False,
        clip_after_ar: bool = True,
        full_ar: bool = False,
        set_param_views_to_flat_buffer: bool = False,
        skip_allgather: bool = False,
        fuse_scale: bool = False,
        param_order: Any = None,
        nccl_allgather_channels: int = 0,
    ) -> None:
        if e5m2_allgather or skip_allgather:
            raise RuntimeError("DistributedFusedLAMB has no e5m2_allgather and no skip_allgather: leave them away")
        if not clip_after_ar:
            raise RuntimeError("DistributedFusedLAMB clips the mean of all ranks' gradients: leave clip_after_ar away")
        self._step_supports_amp_scaling = step_supports_amp_scaling
        self._adam_w_mode, self._use_nvlamb = bool(adam_w_mode), use_nvlamb
        self._global_scale: Any = None
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        groups = (None, *_grid(dwu_group_size))
        super().__init__(params, defaults, groups=groups, overlap_grad_sync=overlap_reductions)

    # ---- called by NVIDIA's training scripts ----

    def set_global_scale(self, global_scale: Any) -> None:
        self._global_scale = global_scale

    @property
    def global_scale(self) -> Any:
        return self._global_scale

    @property
    def L2_grad_norm(self) -> torch.Tensor:
        """Returns the norm of the reduced gradients, which includes the scale."""
        return self._norm()[0]

    @property
    def _lr(self) -> Any:
        return self.param_groups[0]["lr"]

    @_lr.setter
    def _lr(self, value: Any) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def _lazy_init_stage1(self) -> None:
        self.init_params()

    def _lazy_init_stage2(self) -> None:
        """Does nothing after the first backward."""

    def set_is_accumulation_step(self, is_accumulation_step: bool) -> None:
        """Sets whether gradients wait for the backward of a later step."""
        self.greedy_grad_copy = not is_accumulation_step

    def set_last_step(self, last_step: bool) -> None:
        """Does nothing: absent gradients count as zeros in every step."""

    def complete_reductions(self) -> None:
        self.grad_sync()

    # ---- step ----

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        if self._global_scale is not None and not (grad_scaler and grad_scaler.is_enabled()):
            scale = torch.as_tensor(self._global_scale, dtype=torch.float32, device=next(self.parameters()).device)
            self._grad_scale = self._grad_scale / scale
        return super().step(closure, grad_scaler)

    def _overflowed(self, grad_scaler: Any) -> bool:
        """Returns True if the step skips, also without a scaler."""
        return super()._overflowed(grad_scaler) or bool(self._norm()[1])

    def _prepare(self) -> None:
        """Turns gradients into updates, then computes the factor of each parameter's update."""
        numbers = {param: i for i, param in enumerate(self._bucket_of)}
        device = next(iter(numbers)).device
        squares = torch.zeros(2, len(numbers), dtype=torch.float64, device=device)
        for bucket in self._buckets:
            masters = bucket.masters()
            for index, group in enumerate(self.param_groups):
                for span in bucket.trained(index):
                    pair = masters[span.shard], self._to_update(bucket, span.shard, masters[span.shard], group)
                    squares[:, numbers[span.param]] += torch.stack([each.double().square().sum() for each in pair])
        dist.all_reduce(squares, group=self.distributed_process_group)
        p_norm, u_norm = squares.sqrt().float()
        ratios = torch.where((p_norm != 0) & (u_norm != 0), p_norm / u_norm, torch.ones_like(p_norm))
        self._ratios = dict(zip(numbers, ratios.unbind(), strict=True))

    def _clipped(self, group: dict[str, Any]) -> Any:
        """Returns the factor of the gradients."""
        limit = group["max_grad_norm"]
        norm = self._norm()[0] * self._grad_scale
        return self._grad_scale * (torch.clamp(limit / (norm + 1e-6), max=1.0) if limit else 1.0)

    def _to_update(self, bucket: Bucket, shard: slice, p: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Computes Adam's update in place of the gradient."""
        m, v = (bucket.state[name][shard] for name in self._moments)
        g = bucket.grads[shard].mul_(self._clipped(group))  # type: ignore[index]
        beta1, beta2 = group["betas"]
        decay, steps = group["weight_decay"], self._steps + 1
        corrections = [1 - beta**steps if group["bias_correction"] else 1.0 for beta in (beta1, beta2)]
        if not self._adam_w_mode:
            g.add_(p, alpha=decay)
        m.mul_(beta1).add_(g, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        torch.div(m / corrections[0], (v / corrections[1]).sqrt_().add_(group["eps"]), out=g)
        if self._adam_w_mode:
            g.add_(p, alpha=decay)
        return g

    def _update(self, bucket: Bucket, masters: torch.Tensor) -> None:
        for index, group in enumerate(self.param_groups):
            rate = number(group["lr"])
            adapts = self._use_nvlamb or group["weight_decay"] != 0
            for span in bucket.trained(index):
                follows = rate * self._ratios[span.param] if adapts else rate
                masters[span.shard] -= follows * bucket.grads[span.shard]  # type: ignore[index]


def _grid(size: int) -> tuple[Any, Any]:
    """Returns the groups of neighbours, which share the shards, and the groups with the same shard."""
    if not dist.is_available() or not dist.is_initialized():
        return None, None  # an error follows
    world, rank = dist.get_world_size(), dist.get_rank()
    size = size if size > 0 else min(torch.cuda.device_count() or world, world)
    if world % size:
        raise RuntimeError(f"DistributedFusedLAMB: the world size is {world}, no multiple of dwu_group_size={size}")
    if size == world:
        return None, None
    neighbours = [list(range(first, first + size)) for first in range(0, world, size)]
    copies = [list(range(first, world, size)) for first in range(size)]
    return _own_group(neighbours, rank), _own_group(copies, rank)


def _own_group(all_members: list[list[int]], rank: int) -> Any:
    """Returns this rank's group. Every rank makes every group, as torch requires."""
    made = [(members, dist.new_group(members)) for members in all_members]
    return next(group for members, group in made if rank in members)
