# SPDX-License-Identifier: Apache-2.0
"""Searches among all objects of the process: for models, optimizers and averages that nobody has told of."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
from typing import Any

# Files whose functions wait: a thread in one of them makes nothing.
_WAITING = ("threading.py", "queue.py", "selectors.py", "connection.py", "socket.py", "subprocess.py", "thread.py")


def living(kinds: frozenset[Any]) -> list[Any]:
    """Returns the objects of exactly these classes. Returns none while another thread runs: CPython fails in a thread
    that makes a tuple if somebody else holds that tuple, as a list of all objects does."""
    if not _others_wait():
        return []
    objects = gc.get_objects()
    found = list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))
    del objects
    return found


def _others_wait() -> bool:
    me = threading.get_ident()
    return all(
        thread == me or os.path.basename(frame.f_code.co_filename) in _WAITING
        for thread, frame in sys._current_frames().items()
    )
