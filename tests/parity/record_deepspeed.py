# SPDX-License-Identifier: Apache-2.0
"""record_deepspeed.py OUTPUT: DynamicLossScaler.update_scale, defaults from DeepSpeed's configuration class. How to
run: traces.py."""
import importlib.metadata
import logging
import sys

from deepspeed import comm
from deepspeed.runtime.fp16 import loss_scaler
from deepspeed.runtime.precision_config import DeepSpeedFP16Config

import traces

DEFAULTS = DeepSpeedFP16Config()
comm.get_rank = lambda: 0  # asked for its log lines only
loss_scaler.logger.setLevel(logging.ERROR)


class Scaler:
    def __init__(self, s):
        self.scaler = loss_scaler.DynamicLossScaler(
            init_scale=s.init or 2.0**DEFAULTS.initial_scale_power,
            scale_window=s.window or DEFAULTS.loss_scale_window,
            min_scale=s.min or DEFAULTS.min_loss_scale,
            delayed_shift=s.hysteresis or DEFAULTS.hysteresis,
            consecutive_hysteresis=s.consecutive == traces.ON if s.consecutive else DEFAULTS.consecutive_hysteresis,
            raise_error_at_min_scale=False)

    def tick(self, overflow):
        self.scaler.update_scale(overflow)
        clean_run = self.scaler.cur_iter - self.scaler.last_overflow_iter - 1
        return (clean_run, self.scaler.cur_hysteresis), (float(self.scaler.cur_scale),)


traces.record(sys.argv[1], "deepspeed", f"deepspeed {importlib.metadata.version('deepspeed')}, DynamicLossScaler",
              {"min", "window", "hysteresis", "consecutive"}, Scaler)
