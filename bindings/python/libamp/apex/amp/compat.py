# SPDX-License-Identifier: Apache-2.0
"""apex.amp.compat: what differed between early versions of torch, answered for those of today."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

is_floating_point = torch.is_floating_point


def variable_is_tensor() -> bool:
    """Since torch 0.4."""
    return True


def tensor_is_variable() -> bool:
    """type(torch.Tensor()) has never been Variable since."""
    return False


def tensor_is_float_tensor() -> bool:
    """Nor torch.FloatTensor."""
    return False


def is_tensor_like(x: Any) -> bool:
    """A tensor, parameters too."""
    return isinstance(x, torch.Tensor)


def scalar_python_val(x: Any) -> Any:
    """The number in a tensor of one element."""
    return x.item() if hasattr(x, "item") else x[0]


def filter_attrs(module: Any, attrs: Iterable[str]) -> list[str]:
    """Those that the module has."""
    return [name for name in attrs if hasattr(module, name)]
