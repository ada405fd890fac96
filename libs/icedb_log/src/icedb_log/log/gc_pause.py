"""Keeps the search for reference cycles from running over and over while millions of values are made.

Python looks for cycles whenever the number of its objects has grown by a quarter. Decoding a large log file makes
nothing but such growth and not one cycle: the searches would take a third of its time.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_paused_count = 0
_was_enabled = False


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the search for cycles for the whole process; may be nested, and entered by many threads at once."""
    global _paused_count, _was_enabled  # noqa: PLW0603 - the collector itself is one for the process
    with _lock:
        if _paused_count == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused_count += 1
    try:
        yield
    finally:
        with _lock:
            _paused_count -= 1
            if _paused_count == 0 and _was_enabled:
                gc.enable()
