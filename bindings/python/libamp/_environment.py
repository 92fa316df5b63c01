# SPDX-License-Identifier: Apache-2.0
"""Switches in the environment, read by the library's rules."""

from __future__ import annotations

import os

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def switch(name: str) -> bool:
    """Returns True if the switch is on, in upper or lower case. Raises ValueError for an unknown word."""
    value = os.environ.get(name, "")
    if value.lower() not in ON + OFF:
        words = "1, true, yes or on, or 0, false, no or off"
        raise ValueError(f"{name} is {value!r} in the environment, and must be {words}")
    return value.lower() in ON
