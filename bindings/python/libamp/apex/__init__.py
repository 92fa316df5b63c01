# SPDX-License-Identifier: Apache-2.0
"""Apex's packages for PyTorch except amp, fp16_utils, optimizers and parallel, and those modules of apex.amp that exist
only for their names.

The modules in this folder belong to libamp.torch, which searches it after its own: libamp/apex/RNN is libamp.torch.RNN,
libamp/apex/amp/utils.py is libamp.torch.amp.utils. Nothing in libamp/torch depends on them.
"""
import os

FOLDER = os.path.dirname(__file__)

__path__.clear()  # not libamp.apex.RNN too: each module is loaded once
