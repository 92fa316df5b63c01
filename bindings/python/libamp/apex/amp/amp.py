# SPDX-License-Identifier: Apache-2.0
"""apex.amp.amp: the old API and the annotations under the names that scripts import."""
from libamp.torch.amp.frontend import init
from libamp.torch.amp.old_api import AmpHandle, NoOpHandle
from libamp.torch.amp.registry import (
    bfloat16_function,
    float_function,
    half_function,
    promote_function,
    register_bfloat16_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)

__all__ = [
    "AmpHandle",
    "NoOpHandle",
    "bfloat16_function",
    "float_function",
    "half_function",
    "init",
    "promote_function",
    "register_bfloat16_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
]
