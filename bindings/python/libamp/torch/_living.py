# SPDX-License-Identifier: Apache-2.0
"""Searches among all objects of the process: for models, optimizers and averages that nobody told libamp of."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
from typing import Any


def living(kinds: frozenset[Any]) -> list[Any]:
    """Returns the objects of exactly these classes. Returns none while another thread runs Python: CPython fails in a
    thread that is making a tuple if somebody else holds that tuple, as a list of all objects does."""
    if not _others_wait():
        return []
    objects = gc.get_objects()
    found = list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))
    del objects
    return found


def has_grad_fn(tensor: Any) -> bool:
    """Returns True for results of autograd, and for views whose base was changed so that torch refuses to say."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return True


def _others_wait() -> bool:
    """Returns True if no other thread got on within a millisecond."""
    before = _places()
    if before:
        time.sleep(0.001)
    return all(place == before.get(thread, place) for thread, place in _places().items())


def _places() -> dict[int, tuple[int, int]]:
    me = threading.get_ident()
    return {thread: (id(at), at.f_lasti) for thread, at in sys._current_frames().items() if thread != me}
