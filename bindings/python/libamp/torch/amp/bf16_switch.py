# SPDX-License-Identifier: Apache-2.0
"""LIBAMP_BF16=1, or python -m libamp.run --bf16: reads a script's O1 as O4, its O2 as O5, its O3 in bfloat16."""
from __future__ import annotations

from typing import Any

import torch

from ..._environment import switch
from .process_state import maybe_print
from .properties import Properties, fill, resolve

LEVELS = {"O1": "O4", "O2": "O5", "O3": "O3"}
_said = False


def asked() -> bool:
    """Returns True if the environment requests bfloat16 instead of FP16."""
    return switch("LIBAMP_BF16")


def _say() -> None:
    global _said
    if not _said:
        maybe_print("LIBAMP_BF16=1: FP16 is read as bfloat16: O1 as O4, O2 as O5, O3 as O3 in bfloat16", True)
    _said = True


def read(level: str, cast_model_type: Any) -> tuple[str, Any]:
    """Returns the level and model type to use for those of the script."""
    if not asked() or level not in LEVELS:
        return level, cast_model_type
    _say()
    if cast_model_type is torch.float16 or (level == "O3" and cast_model_type is None):
        cast_model_type = torch.bfloat16
    return LEVELS[level], cast_model_type


def read_properties(properties: Properties) -> None:
    """Applies the switch to properties set by a level. Properties that differ from the level's were set by the script
    and remain."""
    if not asked() or properties.opt_level not in LEVELS:
        return
    own = Properties()
    fill(own, properties.opt_level, resolve(properties.opt_level, {}), {})
    given = {name: value for name, value in properties.options.items() if value != own.options[name]}
    level, cast = read(properties.opt_level, given.get("cast_model_type"))
    fill(properties, level, resolve(level, {}), {})
    properties._update_options_dict(given | ({} if cast is None else {"cast_model_type": cast}))


def patch_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type to use for amp.init."""
    if dtype != torch.float16 or not asked():
        return dtype
    _say()
    return torch.bfloat16
