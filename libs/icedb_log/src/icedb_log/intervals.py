"""When something is due again: after an interval, or after a failure. In memory: who starts looks at everything."""

from collections.abc import Callable
from typing import Final

from icedb_log.clock import Clock
from icedb_log.units import MINUTE_MS

FIRST_PAUSE_MS: Final = 1000
MAX_PAUSE_MS: Final = MINUTE_MS


class Backoff:
    """Remembers, for each key, how often it failed in a row and when it is worth another try.

    A sweep asks :meth:`is_due` before it wakes a table again. What a user or a producer asks for is done at once.
    """

    def __init__(self, clock: Clock, *, first_pause_ms: int = FIRST_PAUSE_MS, max_pause_ms: int = MAX_PAUSE_MS) -> None:
        self._clock = clock
        self._first_pause_ms = first_pause_ms
        self._max_pause_ms = max_pause_ms
        self._failures: dict[str, tuple[int, int]] = {}
        """How often in a row each key failed, and until when it pauses."""

    def record_failure(self, key: str) -> int:
        """Count a failure and return the pause that follows, milliseconds."""
        count = self._failures.get(key, (0, 0))[0] + 1
        pause_ms = min(self._first_pause_ms << min(count - 1, 32), self._max_pause_ms)
        self._failures[key] = (count, self._clock.monotonic_ms() + pause_ms)
        return pause_ms

    def record_success(self, key: str) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def is_due(self, key: str) -> bool:
        """Whether no pause is running for the key."""
        failure = self._failures.get(key)
        return failure is None or self._clock.monotonic_ms() >= failure[1]


class Intervals:
    """Remembers when each key was last dealt with, so that it is left alone for a while.

    In memory: a worker that starts looks at everything.
    """

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._noted_ms: dict[str, int] = {}

    def is_due(self, key: str) -> bool:
        """Whether a key was not dealt with for the interval."""
        noted_ms = self._noted_ms.get(key)
        return noted_ms is None or self._clock.monotonic_ms() - noted_ms >= self._interval_ms

    def note(self, key: str) -> None:
        """Leave a key alone from now on."""
        self._noted_ms[key] = self._clock.monotonic_ms()

    def forget(self, key: str) -> None:
        """Let a key be due."""
        self._noted_ms.pop(key, None)

    def look(self, key: str, ask: Callable[[], bool]) -> bool:
        """Return what ``ask`` says of a key that is due, and leave it alone from then on; False for another."""
        if not self.is_due(key):
            return False
        now_ms = self._clock.monotonic_ms()
        answer = ask()
        self._noted_ms[key] = now_ms
        return answer
