# SPDX-License-Identifier: Apache-2.0
"""The opt levels, from the library's list, by what they do."""
from libamp import _core

_PROPERTIES = {level: _core.resolve(level, {}) for level in _core.levels()}


def _levels(**wanted):
    return [level for level, has in _PROPERTIES.items() if all(has[name] in values for name, values in wanted.items())]


LEVELS = list(_PROPERTIES)
PATCHES = _levels(patch_ops=[True])  # O1, O4
CASTS_MODEL = _levels(cast_model_type=["float16", "bfloat16"])  # O2, O3, O5
WITH_MASTERS = _levels(master_weights=[True])  # O2, O5
DYNAMIC = _levels(loss_scale=[-1.0])  # O1, O2: the others step on after an overflow
IN_BF16 = [level for level, (dtype, _) in _core.levels().items() if dtype == "bfloat16"]  # O4, O5
