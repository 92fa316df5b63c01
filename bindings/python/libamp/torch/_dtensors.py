# SPDX-License-Identifier: Apache-2.0
"""DTensors, torch's tensors of several ranks (fully_shard, tensor parallelism), by their attributes, so that torch need
not import them."""
from __future__ import annotations

from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_dtensor(tensor: Any) -> bool:
    """Returns True for a DTensor. torch keeps this rank's part in _local_tensor."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "device_mesh") and hasattr(tensor, "_local_tensor")


def local_part(tensor: Any) -> Any:
    """Returns the elements of this rank, possibly none."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def is_cut(tensor: Any) -> bool:
    """Returns True if other ranks have other elements of the tensor."""
    return is_dtensor(tensor) and any(
        not placement.is_replicate() and tensor.device_mesh.size(dim) > 1
        for dim, placement in enumerate(tensor.placements)
    )


def complete(grad: Any, param: Any) -> Any:
    """Returns a gradient that lies on the ranks as its parameter does. Those of layers with parallel sequences are
    partial: each rank has its summand."""
    if not is_dtensor(grad) or grad.placements == param.placements:
        return grad
    return grad.redistribute(param.device_mesh, param.placements)

