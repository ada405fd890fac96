"""Waiting for what another thread or process does: until it has happened, never for a time."""

from icedb_log.clock import SystemClock

LIMIT_S = 240
"""Of whatever another process or thread does: the machine may be busy. What hangs has been found when it is over."""
LIMIT_MS = 1000 * LIMIT_S
POLL_MS = 10
_CLOCK = SystemClock()


def wait_until(condition, what="what was waited for"):
    """Ask until an answer is true, and return it; fail when it has not been for so long that it never will be."""
    deadline_ms = _CLOCK.monotonic_ms() + LIMIT_MS
    while not (found := condition()):
        assert _CLOCK.monotonic_ms() < deadline_ms, f"did not happen: {what}"
        _CLOCK.sleep_ms(POLL_MS)
    return found
