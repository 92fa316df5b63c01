# SPDX-License-Identifier: Apache-2.0
"""apex.parallel over torch.distributed, on any device with a backend."""

from torch.distributed import ReduceOp

from ..._at_exit import at_exit
from . import LARC
from .convert import convert_syncbn_model, create_syncbn_process_group
from .distributed import DistributedDataParallel, Reducer
from .sync_batchnorm import SyncBatchNorm

__all__ = [
    "LARC",
    "DistributedDataParallel",
    "ReduceOp",
    "Reducer",
    "SyncBatchNorm",
    "convert_syncbn_model",
    "create_syncbn_process_group",
]

at_exit()
