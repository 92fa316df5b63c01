# SPDX-License-Identifier: Apache-2.0
"""Switches of the environment, read as the library reads its own."""

from __future__ import annotations

import os

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def switch(name: str) -> bool:
    """Is it on? In capitals or not. Another word is an error: whoever set it wanted something."""
    value = os.environ.get(name, "")
    if value.lower() not in ON + OFF:
        words = "1, true, yes or on, or 0, false, no or off"
        raise ValueError(f"{name} is {value!r} in the environment, and must be {words}")
    return value.lower() in ON
