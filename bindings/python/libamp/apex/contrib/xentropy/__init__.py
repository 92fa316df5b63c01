# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.xentropy: cross entropy that saves only the logits for backward."""

from .softmax_xentropy import SoftmaxCrossEntropyLoss

__all__ = ["SoftmaxCrossEntropyLoss"]
