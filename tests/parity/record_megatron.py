# SPDX-License-Identifier: Apache-2.0
"""record_megatron.py OUTPUT: DynamicGradScaler.update of megatron-core, loaded from its own file (the package wants a
GPU), its device='cuda' replaced by the CPU. How to run: traces.py."""
import importlib.metadata
import importlib.util
import sys
import types

import torch

import traces

package = importlib.metadata.distribution("megatron-core")
path = package.locate_file("megatron/core/optimizer/grad_scaler.py")
spec = importlib.util.spec_from_file_location("grad_scaler", path)
grad_scaler = importlib.util.module_from_spec(spec)
spec.loader.exec_module(grad_scaler)
grad_scaler.torch = types.SimpleNamespace(
    tensor=lambda data, dtype, device: torch.tensor(data, dtype=dtype), float=torch.float, max=torch.max)


class Scaler:
    def __init__(self, s):
        # The defaults: megatron/core/optimizer/optimizer_config.py and __init__.py.
        self.scaler = grad_scaler.DynamicGradScaler(
            initial_scale=s.init or 2.0**32, min_scale=s.min or 1.0, growth_factor=s.growth or 2.0,
            backoff_factor=s.backoff or 0.5, growth_interval=s.window or 1000, hysteresis=s.hysteresis or 2)

    def tick(self, overflow):
        self.scaler.update(overflow)
        # Below 1 the tracker only goes further down, with no effect: libamp stops at 1.
        hysteresis = max(1, self.scaler._hysteresis_tracker)
        return (self.scaler._growth_tracker, hysteresis), (self.scaler.scale.item(),)


traces.record(sys.argv[1], "megatron",
              f"megatron-core {package.version} on torch {torch.__version__}, DynamicGradScaler",
              {"min", "growth", "backoff", "window", "hysteresis"}, Scaler)
