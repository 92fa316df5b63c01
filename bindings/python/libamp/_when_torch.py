# SPDX-License-Identifier: Apache-2.0
"""Calls a function once the script has imported torch. Importing it earlier would read the environment that the script
is about to set."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .apex_shim import BesideLoader


class _Finder(MetaPathFinder):
    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = BesideLoader(spec.loader, lambda torch: self.then())
        return spec


def when_imported(then: Callable[[], None]) -> None:
    """Calls a function now if torch is imported, else behind the import. A second call with it does nothing."""
    if "torch" in sys.modules:
        then()
    elif not any(isinstance(finder, _Finder) and finder.then is then for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(then))
