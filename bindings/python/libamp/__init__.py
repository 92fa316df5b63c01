# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision. `libamp.torch.amp` is apex.amp for today's PyTorch; `libamp.kernels` works on any tensors.
Importing libamp changes nothing in the process, and imports neither torch nor NumPy."""
from ._core import ArgumentError, Error, FileError
from ._core import version as __version__

__all__ = ["ArgumentError", "Error", "FileError", "__version__"]
