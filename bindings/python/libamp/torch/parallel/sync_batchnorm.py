# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all ranks, on any device that the process group supports.

Each rank computes count, mean and the sum of squared deviations of its batch. These are gathered and combined by count,
so batches may differ in size or be empty. Statistics and arithmetic are FP32 (FP64 for FP64 input). The output has the
type of the input. Gradients of weight and bias are local, as data parallel training expects. Training mode has no
double backward.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from ..._words import counted
from .. import _tested_versions


def _world_size(group: Any) -> int:
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(group)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _along(vector: torch.Tensor, ndim: int, channel: int) -> torch.Tensor:
    """Returns a vector of channels in a shape that broadcasts over a tensor of ndim dimensions."""
    shape = [1] * ndim
    shape[channel] = -1
    return vector.view(shape)


def _join(
    count: int, mean: torch.Tensor, squares: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns count, mean and biased variance over all ranks, from the squared deviations of each. The bits are equal
    on all ranks."""
    own = torch.cat([mean, squares, mean.new_full((1,), count)])
    parts = [own]
    if _world_size(group) > 1:
        _tested_versions.several_gpus("SyncBatchNorm", own.device, _world_size(group))
        parts = [torch.empty_like(own) for _ in range(_world_size(group))]
        dist.all_gather(parts, own, group=group)
    table = torch.stack(parts)
    means, squares_of, counts = table[:, : mean.numel()], table[:, mean.numel() : -1], table[:, -1:]
    total = counts.sum(0)
    joint = (means * (counts / total)).sum(0)
    between = ((means - joint).square() * counts).sum(0)
    return total, joint, (squares_of.sum(0) + between) / total


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        z: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        channel: int,
        relu: bool,
        group: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        x = _wide(input)
        dims = [dim for dim in range(x.dim()) if dim != channel]
        size = x.numel() // x.shape[channel]
        own = x.mean(dims) if size else x.new_zeros(x.shape[channel])
        y = x - _along(own, x.dim(), channel)
        count, mean, variance = _join(size, own, y.square().sum(dims), group)
        # y is centred at this rank's mean. The difference to the joint mean goes into the shift.
        factor = torch.rsqrt(variance + eps) if weight is None else torch.rsqrt(variance + eps) * weight.to(y.dtype)
        shift = (own - mean) * factor if bias is None else (own - mean) * factor + bias.to(y.dtype)
        y = y.mul_(_along(factor, x.dim(), channel)).add_(_along(shift, x.dim(), channel))
        if z is not None:
            y += z.to(y.dtype)
        positive = y > 0 if relu else None
        if relu:
            y.clamp_min_(0)
        ctx.save_for_backward(input, weight, mean, variance, count, positive)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.z_dtype = None if z is None else z.dtype
        ctx.channel, ctx.dims, ctx.group, ctx.eps = channel, dims, group, eps
        ctx.mark_non_differentiable(count, mean, variance)
        return y.to(input.dtype), count, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, variance, count, positive = ctx.saved_tensors
        dy = _wide(grad)
        if positive is not None:
            dy = dy * positive
        grad_z = dy.to(ctx.z_dtype) if ctx.z_dtype is not None and ctx.needs_input_grad[1] else None
        x, channel, dims = _wide(input), ctx.channel, ctx.dims
        centred = x - _along(mean, x.dim(), channel)
        scale = torch.rsqrt(variance + ctx.eps)
        sums = torch.cat([dy.sum(dims), (dy * centred).sum(dims) * scale])
        sum_dy, sum_dy_x_hat = sums.chunk(2)
        # These are this rank's own sums: keep them before the all-reduce.
        grad_weight = sum_dy_x_hat.to(weight.dtype, copy=True) if weight is not None else None
        grad_bias = sum_dy.to(ctx.bias_dtype, copy=True) if ctx.bias_dtype is not None else None
        if _world_size(ctx.group) > 1:  # also where this rank's input needs no gradient: the others' may
            dist.all_reduce(sums, group=ctx.group)
        grad_input = None
        if ctx.needs_input_grad[0]:
            sums /= count
            factor = scale if weight is None else scale * weight.to(scale.dtype)
            grad_input = centred.mul_(_along(-sum_dy_x_hat * scale, x.dim(), channel)).add_(dy)
            grad_input = grad_input.sub_(_along(sum_dy, x.dim(), channel)).mul_(_along(factor, x.dim(), channel))
            grad_input = grad_input.to(input.dtype)
        return grad_input, grad_z, grad_weight, grad_bias, None, None, None, None


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the ranks of process_group (None: all), with the interface of Apex's.

    Inputs are [N, C, ...], or [N, ..., C] with channel_last. [N, C] is valid in both. forward(input, z=None) adds z to
    the result. fuse_relu: bool, applies ReLU at the end. momentum: None averages all batches equally. Without
    torch.distributed it normalises over this process. Raises ValueError for an input of a wrong shape.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def _specify_process_group(self, process_group: Any) -> None:
        self.process_group = process_group

    def _specify_channel_last(self, channel_last: bool) -> None:
        self.channel_last = channel_last

    # A process group cannot be copied or pickled: a copy keeps it, a pickle has that of all ranks.
    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        memo[id(self.process_group)] = self.process_group
        new.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "process_group": None}

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        self._check_input_dim(input)
        channel = input.dim() - 1 if self.channel_last else 1
        if input.shape[channel] != self.num_features:
            expected = counted(self.num_features, "channel")
            raise ValueError(f"expected {expected} in dimension {channel}, got {tuple(input.shape)}")
        if not self.training and self.running_mean is not None:
            return self._evaluate(input, z, channel)
        if input.numel() == self.num_features and _world_size(self.process_group) < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
        y, count, mean, variance = _SyncBatchNorm.apply(
            input, z, self.weight, self.bias, self.eps, channel, self.fuse_relu, self.process_group
        )
        if self.training and self.running_mean is not None:
            self._track(count, mean, variance)
        return y

    @torch.no_grad()
    def _track(self, count: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp_min(1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_(running.to(new.dtype) * (1 - share) + new * share)

    def _evaluate(self, input: torch.Tensor, z: torch.Tensor | None, channel: int) -> torch.Tensor:
        kinds = {input.dtype} | {t.dtype for t in (self.running_mean, self.weight) if t is not None}
        one_type = len(kinds) == 1
        vectors = [self.running_mean, self.running_var, self.weight, self.bias]
        x = input.movedim(channel, 1)
        if not one_type:  # some releases do not mix types on every device
            x = _wide(x)
            vectors = [None if vector is None else vector.to(x.dtype) for vector in vectors]
        mean, variance, weight, bias = vectors
        y = F.batch_norm(x, mean, variance, weight, bias, False, 0.0, self.eps).movedim(1, channel)
        if z is not None:
            y = y + z.to(y.dtype)
        if self.fuse_relu:
            y = y.clamp_min(0)
        return y.to(input.dtype)
