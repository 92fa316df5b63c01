# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.optimizers.distributed_fused_adam."""

from __future__ import annotations

from typing import Any

import torch

from libamp.torch.optimizers import FusedAdam
from libamp.torch.optimizers.base import fused_step, numbers_of

from ._buckets import Bucket
from ._sharded import ShardedOptimizer

__all__ = ["DistributedFusedAdam"]


class DistributedFusedAdam(ShardedOptimizer):
    """FusedAdam with state, masters and reduced gradients divided between ranks (ZeRO-2), on any device that the
    process group supports. Parameters become those of rank 0.

    dtype: of state and masters. A step computes in FP32. grad_sync_dtype, param_sync_dtype: types of the messages, by
    default parameters are sent in their own. process_group: all ranks, distributed_process_group x
    redundant_process_group. Shards lie along the first, copies along the second. average_grad_sync: mean instead of
    sum. overlap_grad_sync: send buckets of bucket_cap_mb MiB during backward. pipeline_size: number of buckets gathered
    at a time. store_params: store masters of 16-bit parameters. store_param_remainders: store the 16 bits that bfloat16
    parameters lack instead. device: that of the parameters, optional. overlap_param_sync, contiguous_param_buffer and
    contiguous_grad_buffer are ignored.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        dtype: torch.dtype = torch.float32,
        grad_sync_dtype: torch.dtype | None = None,
        param_sync_dtype: torch.dtype | None = None,
        device: Any = None,
        process_group: Any = None,
        distributed_process_group: Any = None,
        redundant_process_group: Any = None,
        average_grad_sync: bool = True,
        overlap_grad_sync: bool = True,
        overlap_param_sync: bool = False,
        bucket_cap_mb: float = 100.0,
        pipeline_size: int = 2,
        contiguous_param_buffer: bool = False,
        contiguous_grad_buffer: bool = False,
        store_params: bool = True,
        store_param_remainders: bool = False,
        with_scaled_states: bool = False,
        nccl_ub: bool = False,
        capturable: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("DistributedFusedAdam has no AMSGrad variant")
        refused = {"with_scaled_states": with_scaled_states, "nccl_ub": nccl_ub, "capturable": capturable}
        for name, given in refused.items():
            if given:
                raise RuntimeError(f"DistributedFusedAdam: {name} is not here: leave it away")
        if store_param_remainders and store_params:
            raise RuntimeError("DistributedFusedAdam: store_params or store_param_remainders, not both")
        if store_param_remainders and (dtype, param_sync_dtype) != (torch.float32, torch.bfloat16):
            raise RuntimeError(
                "DistributedFusedAdam: store_param_remainders needs dtype=torch.float32 and param_sync_dtype="
                f"torch.bfloat16, and got {dtype} and {param_sync_dtype}"
            )
        self.adam_w_mode = adam_w_mode
        self.device = device
        super().__init__(
            params,
            {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay},
            groups=(process_group, distributed_process_group, redundant_process_group),
            dtype=dtype,
            grad_sync_dtype=grad_sync_dtype,
            param_sync_dtype=param_sync_dtype,
            average_grad_sync=average_grad_sync,
            overlap_grad_sync=overlap_grad_sync,
            bucket_cap_mb=bucket_cap_mb,
            pipeline_size=pipeline_size,
            store_params=store_params,
            store_param_remainders=store_param_remainders,
        )

    def _refusal(self, params: list[torch.Tensor]) -> str | None:
        for param in params:
            if self.device is not None and param.device.type != torch.device(self.device).type:
                return f"device is {self.device}, and parameters are on {param.device}: leave device away"
        return super()._refusal(params)

    def _update(self, bucket: Bucket, masters: torch.Tensor) -> None:
        moments = {name: bucket.state[name].float() for name in self._moments}  # FP32: themselves
        for index, group in enumerate(self.param_groups):
            shards = [span.shard for span in bucket.trained(index)]
            fused_step(
                "adamw" if self.adam_w_mode else "adam",
                [masters[shard] for shard in shards],
                [bucket.grads[shard] for shard in shards],  # type: ignore[index]
                {name: [moment[shard] for shard in shards] for name, moment in moments.items()},
                self._steps,
                inv_scale=self._factor(bucket),
                **numbers_of(group, FusedAdam._arguments),
            )
        if self.dtype != torch.float32:
            for name, moment in moments.items():
                bucket.state[name].copy_(moment)
