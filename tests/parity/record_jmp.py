# SPDX-License-Identifier: Apache-2.0
"""record_jmp.py OUTPUT: jmp.DynamicLossScale.adjust, not jitted: jit drops min_loss_scale. How to run: traces.py."""
import importlib.metadata
import sys

import jax.numpy as jnp
import jmp
import numpy as np

import traces

FINITE = {False: jnp.array(True), True: jnp.array(False)}


class Scaler:
    def __init__(self, s):
        options = {"period": s.window, "factor": s.growth, "min_loss_scale": s.min and jnp.float32(s.min)}
        init = np.float32(s.init or 2.0**15)  # required; this is the documentation's
        given = {name: value for name, value in options.items() if value}
        self.scaler = jmp.DynamicLossScale(jnp.asarray(init), **given)

    def tick(self, overflow):
        self.scaler = self.scaler.adjust(FINITE[overflow])
        return (int(self.scaler.counter), 0), (float(self.scaler.loss_scale),)


version = importlib.metadata.version
traces.record(sys.argv[1], "jmp", f"jmp {version('jmp')} on jax {version('jax')}, DynamicLossScale.adjust",
              {"min", "growth", "window"}, Scaler)
