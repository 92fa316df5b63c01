# SPDX-License-Identifier: Apache-2.0
"""What Apex had for PyTorch beside amp, fp16_utils, optimizers and parallel, and the modules of apex.amp that are there
for their names alone.

The modules in this folder belong to libamp.torch, which searches it behind its own: libamp/apex/RNN is
libamp.torch.RNN, libamp/apex/amp/utils.py is libamp.torch.amp.utils. Nothing in libamp/torch needs them."""
import os

FOLDER = os.path.dirname(__file__)

__path__.clear()  # not libamp.apex.RNN too: each module is loaded once
