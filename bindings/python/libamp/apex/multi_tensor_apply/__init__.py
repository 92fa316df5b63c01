# SPDX-License-Identifier: Apache-2.0
"""apex.multi_tensor_apply: calls functions of amp_C on lists of tensors."""

from .multi_tensor_apply import MultiTensorApply

multi_tensor_applier = MultiTensorApply(2048 * 32)

__all__ = ["MultiTensorApply", "multi_tensor_applier"]
