# SPDX-License-Identifier: Apache-2.0
"""python -m libamp.run --cpu: runs a script that asks for a GPU on the CPU.

torch keeps its tensors, types and devices. Functions that take a device use the CPU instead of a GPU, and torch.cuda
behaves as with one GPU. Only functions that name a device are wrapped.
"""

from __future__ import annotations

import importlib

from .. import _when_torch

VARIABLE = "LIBAMP_CPU"  # environment variable, inherited by the script's processes
_PARTS = ("tensors", "cuda", "autocast", "parallel", "compilers")


def install() -> None:
    """Installs the wrappers. torch must be imported."""
    for part in _PARTS:
        importlib.import_module(f"{__name__}.{part}").install()


def when_imported() -> None:
    """Calls install() once a script imports torch."""
    _when_torch.when_imported(install)
