"""How late it is at most: the store's time as far as this host's monotonic clock can vouch for it (J1).

A store's clock that jumps ahead makes everything old at once; one that was behind and is set right makes old what was
written meanwhile. Between two answers of the store, though, no more time can have passed than this host's monotonic
clock says, which nobody sets. So the earliest time that any answer of the last while allows for is the one to measure
ages by. It errs to the late side only: a host that sleeps, or a store's clock that goes backwards, delays deletions.
"""

import threading


class SteadyTime:
    """What one process has heard of a store's time. Thread-safe.

    After a jump ahead by ``j`` it is behind by ``j`` for one window, at most two, and then takes the store's word
    again: whatever was written before the jump is older than a window by then, without the jump.

    Args:
        window_ms: How long an answer counts, at least; not below the ages that are judged by it.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._lock = threading.Lock()
        self._begun_ms: int | None = None
        self._least: int | None = None
        self._least_before: int | None = None

    def hold_back(self, store_now_ms: int, *, asked_ms: int, window_ms: int | None = None) -> int:
        """Return the store's time when it was asked, or less if its answers do not agree with each other.

        Args:
            store_now_ms: What it answered, unix ms.
            asked_ms: This host's monotonic clock before it was asked.
            window_ms: Another window from now on.
        """
        with self._lock:
            self._window_ms = window_ms or self._window_ms
            if self._begun_ms is None or asked_ms - self._begun_ms >= self._window_ms:
                is_old = self._begun_ms is None or asked_ms - self._begun_ms >= 2 * self._window_ms
                self._least_before = None if is_old else self._least
                self._begun_ms, self._least = asked_ms, None
            # WARN: by the time of the question. The answer was made later, so that no more time can have passed
            # since than this host measures; by the time of the answer, a slow listing would hide a jump.
            offset_ms = store_now_ms - asked_ms
            self._least = offset_ms if self._least is None else min(self._least, offset_ms)
            least = self._least if self._least_before is None else min(self._least, self._least_before)
            return asked_ms + least
