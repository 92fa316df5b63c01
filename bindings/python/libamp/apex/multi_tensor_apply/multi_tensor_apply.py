# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class MultiTensorApply:
    """Calls functions of amp_C: `applier(op, noop_flag, lists, *args)` is `op(chunk_size, noop_flag, lists, *args)`.
    `available` is always True, and libamp's kernels choose their own chunks."""

    available = True
    warned = False
    import_err: ImportError | None = None

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        if not MultiTensorApply.available:
            raise RuntimeError("MultiTensorApply: amp_C could not be imported:", MultiTensorApply.import_err)

    def __call__(
        self,
        op: Callable[..., Any],
        noop_flag_buffer: torch.Tensor,
        tensor_lists: Sequence[Sequence[torch.Tensor]],
        *args: Any,
    ) -> Any:
        self.check_avail()
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)
