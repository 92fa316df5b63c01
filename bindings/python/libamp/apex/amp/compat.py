# SPDX-License-Identifier: Apache-2.0
"""apex.amp.compat: differences between early versions of torch, answered for today's."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

is_floating_point = torch.is_floating_point


def variable_is_tensor() -> bool:
    """Returns True, as since torch 0.4."""
    return True


def tensor_is_variable() -> bool:
    """Returns False: type(torch.Tensor()) is no Variable since torch 0.4."""
    return False


def tensor_is_float_tensor() -> bool:
    """Returns False: nor is it torch.FloatTensor."""
    return False


def is_tensor_like(x: Any) -> bool:
    """Returns True for a tensor, parameters included."""
    return isinstance(x, torch.Tensor)


def scalar_python_val(x: Any) -> Any:
    """Returns the number in a tensor of one element."""
    return x.item() if hasattr(x, "item") else x[0]


def filter_attrs(module: Any, attrs: Iterable[str]) -> list[str]:
    """Returns the names that the module has."""
    return [name for name in attrs if hasattr(module, name)]
