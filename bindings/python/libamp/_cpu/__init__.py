# SPDX-License-Identifier: Apache-2.0
"""python -m libamp.run --cpu: runs a script that asks for a GPU on the CPU.

torch keeps its tensors, types and devices. Functions that take a device use the CPU instead of a GPU, and torch.cuda
behaves as with one GPU. Only functions that name a device are wrapped.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ..apex_shim import BesideLoader

VARIABLE = "LIBAMP_CPU"  # environment variable, inherited by the script's processes
_PARTS = ("tensors", "cuda", "autocast", "parallel", "compilers")


def install() -> None:
    """Installs the wrappers. torch must be imported."""
    for part in _PARTS:
        importlib.import_module(f"{__name__}.{part}").install()


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = BesideLoader(spec.loader, lambda torch: install())
        return spec


def when_imported() -> None:
    """Calls install() once a script imports torch."""
    if "torch" in sys.modules:
        install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
