"""Growing pauses after failures, by key. Deterministic: the sweeps of several workers spread by themselves."""

from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock

FIRST_PAUSE_MS: Final = 1000
MAX_PAUSE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class _Failure:
    count: int
    not_before_ms: int


class Backoff:
    """Remembers, for each key, how often it failed in a row and when it is worth another try.

    A sweep asks :meth:`is_due` before it wakes a table again. What a user or a producer asks for is done at once.

    Args:
        clock: Measures the pauses.
        first_pause_ms: After the first failure; doubles with each further one.
        max_pause_ms: No pause is longer.
    """

    def __init__(self, clock: Clock, *, first_pause_ms: int = FIRST_PAUSE_MS, max_pause_ms: int = MAX_PAUSE_MS) -> None:
        self._clock = clock
        self._first_pause_ms = first_pause_ms
        self._max_pause_ms = max_pause_ms
        self._failures: dict[str, _Failure] = {}

    def record_failure(self, key: str) -> int:
        """Count a failure and return the pause that follows, milliseconds."""
        before = self._failures.get(key)
        count = before.count + 1 if before else 1
        pause_ms = min(self._first_pause_ms << min(count - 1, 32), self._max_pause_ms)
        self._failures[key] = _Failure(count, self._clock.monotonic_ms() + pause_ms)
        return pause_ms

    def record_success(self, key: str) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def is_due(self, key: str) -> bool:
        """Whether no pause is running for the key."""
        failure = self._failures.get(key)
        return failure is None or self._clock.monotonic_ms() >= failure.not_before_ms
