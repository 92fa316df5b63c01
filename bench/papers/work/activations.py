# SPDX-License-Identifier: Apache-2.0
"""Bytes of activations in 8, 4 and 2 bits: figures/activations.py."""
import gc
from typing import Any

import torch
from libamp.torch import amp
from training_steps.cpu import resnet18, resnet50, transformer

from ..figure import Budget, Data

NETWORKS = {"ResNet-50": (resnet50, 4), "ResNet-18, 32 x 32": (resnet18, 16), "transformer, 4 layers": (transformer, 8)}
LEVELS, BITS = ("O0", "O4"), (8, 4, 2)


def saved(make: Any, batch: int, level: str, bits: int) -> tuple[int, int]:
    """Returns the bytes before and after packing, of one forward."""
    torch.manual_seed(0)
    model, x = make(batch)
    model = amp.initialize(model, opt_level=level, verbosity=0)
    handle = amp.compress_activations(model, bits)
    model(x)
    size = handle.bytes.before, handle.bytes.now
    amp.shutdown()
    gc.collect()
    return size


def measure(budget: Budget) -> Data:
    data: Data = {"seeds": [0], "steps": 1, "rows": []}
    for name, (make, batch) in NETWORKS.items():
        for level in LEVELS:
            for bits in BITS:
                if budget.left() < 0:
                    data["stopped"] = f"{name} and later networks are incomplete"
                    return data
                before, now = saved(make, batch, level, bits)
                sizes = {"before_mb": round(before / batch / 1e6, 4), "now_mb": round(now / batch / 1e6, 4)}
                data["rows"].append({"network": name, "level": level, "bits": bits, "batch": batch, **sizes})
    return data
