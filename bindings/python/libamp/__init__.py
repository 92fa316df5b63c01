# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision. `libamp.torch.amp` is apex.amp for today's PyTorch. `libamp.kernels` works on tensors of
any library.

Importing libamp imports neither torch nor NumPy and changes nothing in the process.
"""
from ._core import ArgumentError, Error, FileError
from ._core import version as __version__
from ._findings import FindingWarning

__all__ = ["ArgumentError", "Error", "FileError", "FindingWarning", "__version__", "install_apex"]


def install_apex(replace: bool = False) -> None:
    """Makes `import apex` work in this process: libamp's modules answer for those that no installed Apex has.

    replace: bool, True uses libamp's modules also where the installed Apex has its own.

    Raises ImportError if another apex is already imported.
    """
    from . import apex_shim

    apex_shim.install(replace)
