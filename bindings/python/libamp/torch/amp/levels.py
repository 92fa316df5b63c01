# SPDX-License-Identifier: Apache-2.0
"""The opt levels as callables that set Properties, as in Apex's frontend."""
from __future__ import annotations

from ... import _core
from .properties import Properties, fill, resolve


class Level:
    """An opt level. O1()(properties) sets the properties of the level."""

    brief = ""

    def __call__(self, properties: Properties) -> Properties:
        level = type(self).__name__
        fill(properties, level, resolve(level, {}), {})
        return properties


class O0(Level):
    brief = "everything in FP32"


class O1(Level):
    brief = "calls cast by the lists, to FP16 or FP32; parameters in FP32"


class O2(Level):
    brief = "model in FP16, batch norm and masters in FP32"


class O3(Level):
    brief = "everything in FP16"


class O4(Level):
    brief = "calls cast by the lists, to bfloat16 or FP32; parameters in FP32"


class O5(Level):
    brief = "model in bfloat16, batch norm and masters in FP32"


opt_levels: dict[str, Level] = {level.__name__: level() for level in (O0, O1, O2, O3, O4, O5)}
for _name, (_, _words) in _core.levels().items():  # those that the library has besides
    opt_levels.setdefault(_name, type(_name, (Level,), {"brief": _words})())
