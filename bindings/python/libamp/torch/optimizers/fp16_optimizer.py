# SPDX-License-Identifier: Apache-2.0
"""FP16_Optimizer under the name of apex.optimizers.fp16_optimizer."""

from ..fp16_utils.fp16_optimizer import FP16_Optimizer

__all__ = ["FP16_Optimizer"]
