# SPDX-License-Identifier: Apache-2.0
"""record_mxnet.py OUTPUT: mxnet.contrib.amp's LossScaler.has_overflow on a gradient with and without an infinity. How
to run: traces.py."""
import sys
import types

import mxnet
from mxnet.contrib.amp.loss_scaler import LossScaler

import traces

PARAMETERS = {overflow: [types.SimpleNamespace(_grad=[mxnet.nd.array([float("inf") if overflow else 1.0])])]
              for overflow in (False, True)}


class Scaler:
    def __init__(self, s):
        self.scaler = LossScaler()
        if s.init:
            self.scaler._loss_scale = self.scaler._next_loss_scale = s.init
        self.scaler._max_loss_scale = s.max or self.scaler._max_loss_scale
        self.scaler._scale_seq_len = s.window or self.scaler._scale_seq_len

    def tick(self, overflow):
        assert self.scaler.has_overflow(PARAMETERS[overflow]) == overflow
        coming = self.scaler._next_loss_scale
        in_range = 2.0**-126 <= coming <= 2.0**127
        return (self.scaler._unskipped, traces.bits(coming) if in_range else 0), (self.scaler.loss_scale, coming)


traces.record(sys.argv[1], "mxnet", f"mxnet {mxnet.__version__}, contrib.amp.loss_scaler.LossScaler",
              {"max", "window"}, Scaler)
