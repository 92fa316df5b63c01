# SPDX-License-Identifier: Apache-2.0
"""apex.amp.lists: the cast lists under the names that scripts edit. They show the library's list. A name that a script
adds, moves or removes counts from the next initialize on, with lists="apex"."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import functional_overrides, tensor_overrides, torch_overrides
from ._classes import CLASSES, LEAVE

__all__ = ["changes", "functional_overrides", "tensor_overrides", "torch_overrides"]


def _classes_of(overrides: Any) -> dict[str, int]:
    """Returns a map from name to class. Of several lists the last in CLASSES counts, because Apex put its wrapper
    outside the others."""
    found: dict[str, int] = {}
    for attribute, op_class in CLASSES.items():
        for entry in getattr(overrides, attribute, ()):
            found[entry if isinstance(entry, str) else entry[0]] = op_class
    return found


_TABLES = (functional_overrides, torch_overrides, tensor_overrides)
_built = [_classes_of(overrides) for overrides in _TABLES]


def changes() -> Iterator[tuple[Any, str, int]]:
    """Yields (module, name, class) of each name whose class differs from the library's list."""
    for overrides, built in zip(_TABLES, _built):
        present = _classes_of(overrides)
        for name in sorted(built.keys() | present.keys()):
            op_class = present.get(name, LEAVE)
            if op_class != built.get(name, LEAVE) and hasattr(overrides.MODULE, name):
                yield overrides.MODULE, name, op_class
