# SPDX-License-Identifier: Apache-2.0
"""record_torch.py OUTPUT: torch.amp.GradScaler on the CPU through scale, step and update. How to run: traces.py."""
import sys

import torch

import traces


class Scaler:
    def __init__(self, s):
        options = {"init_scale": s.init, "growth_factor": s.growth, "backoff_factor": s.backoff,
                   "growth_interval": s.window}
        self.scaler = torch.amp.GradScaler("cpu", **{name: value for name, value in options.items() if value})
        self.scaler.scale(torch.ones(()))  # makes the scale and the growth tracker
        self.parameter = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.0)

    def tick(self, overflow):
        self.parameter.grad = torch.full((1,), float("inf") if overflow else 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        state = self.scaler.state_dict()
        return (state["_growth_tracker"], 0), (state["scale"],)


traces.record(sys.argv[1], "torch", f"torch {torch.__version__}, torch.amp.GradScaler('cpu')",
              {"growth", "backoff", "window"}, Scaler)
