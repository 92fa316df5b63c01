# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.xentropy: cross entropy that keeps the logits for backward, and nothing else of their size."""

from .softmax_xentropy import SoftmaxCrossEntropyLoss

__all__ = ["SoftmaxCrossEntropyLoss"]
