# SPDX-License-Identifier: Apache-2.0
"""DTensors, torch's tensors of several ranks (fully_shard, tensor parallelism), by their attributes, so that torch need
not import them."""
from __future__ import annotations

import math
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
    return bool(_cuts(tensor))


def _cuts(tensor: Any) -> list[tuple[int, Any]]:
    """Returns the dimensions of the mesh along which ranks have other elements, and how they are cut."""
    placements = enumerate(tensor.placements) if is_dtensor(tensor) else ()
    return [(dim, each) for dim, each in placements if not each.is_replicate() and tensor.device_mesh.size(dim) > 1]


def is_stretch(tensor: Any) -> bool:
    """Returns True if this rank's elements are consecutive ones of the whole tensor: it is cut by rows, or not cut.
    Strided shards (tensor parallelism and fully_shard of one dimension) are not."""
    return all(type(each).__name__ == "Shard" and each.dim == 0 for _, each in _cuts(tensor))


def elements_before(tensor: Any) -> int:
    """Returns the number of elements of the whole tensor before this rank's, which are a stretch."""
    first, rows = 0, tensor.shape[0] if tensor.ndim else 1
    for dim, _ in _cuts(tensor):
        each = -(-rows // tensor.device_mesh.size(dim))
        begin = min(each * tensor.device_mesh.get_local_rank(dim), rows)
        first, rows = first + begin, min(each, rows - begin)
    return first * math.prod(tensor.shape[1:])


def rows_of_ranks(tensor: Any) -> int:
    """Returns the rows of each rank but the last ones, which may have fewer. 0 if several dimensions of the mesh cut
    the tensor, or one cuts it otherwise than by rows."""
    cuts = _cuts(tensor)
    if len(cuts) > 1 or not is_stretch(tensor):
        return 0
    rows = tensor.shape[0] if tensor.ndim else 1
    return -(-rows // tensor.device_mesh.size(cuts[0][0])) if cuts else rows


def complete(grad: Any, param: Any) -> Any:
    """Returns a gradient that lies on the ranks as its parameter does. Those of layers with parallel sequences are
    partial: each rank has its summand."""
    if not is_dtensor(grad) or grad.placements == param.placements:
        return grad
    return grad.redistribute(param.device_mesh, param.placements)

