# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision. `libamp.torch.amp` is apex.amp for today's PyTorch; `libamp.kernels` works on any tensors.
Importing libamp changes nothing in the process, and imports neither torch nor NumPy."""
from ._core import ArgumentError, Error, FileError
from ._core import version as __version__
from ._findings import FindingWarning

__all__ = ["ArgumentError", "Error", "FileError", "FindingWarning", "__version__", "install_apex"]


def install_apex(replace: bool = False) -> None:
    """Makes `import apex` work in this process, with libamp's parts where no installed Apex has them.

    replace: libamp's parts also where the installed Apex has its own. ImportError if another apex is imported already.
    """
    from . import apex_shim

    apex_shim.install(replace)
