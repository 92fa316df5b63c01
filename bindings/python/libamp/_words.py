# SPDX-License-Identifier: Apache-2.0
"""Numbers in messages."""


def counted(count: int, noun: str) -> str:
    """Returns "1 step", "2 steps", "2 losses". noun: in the singular."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}es" if noun.endswith("ss") else f"{count} {noun}s"
