"""How this host's wall clock stands to the store's, and whether somebody sets it. For metrics; decides nothing.

Every answer of a store says what time it is there. The wall clock is compared with that, and with the monotonic clock,
which nobody sets. A clock that is slewed or smeared runs a little faster or slower, and does not jump.
"""

import threading
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from icedb_log.clock import Clock

JUMP_MS: Final = 500
"""A step of the wall clock against the monotonic one is a jump from here on: a leap second, too, unless smeared."""

WINDOW_MS: Final = 30_000
"""The least difference of so long a time counts: an answer that took long makes this host look ahead."""

PAUSE_MS: Final = 100
"""Both clocks of this host are read one after the other; with more in between they are not compared."""


@runtime_checkable
class TellsTime(Protocol):
    """A store that says what time its answers tell.

    Attributes:
        time_listeners: Each is called with the store's clock, unix ms, by any thread, whenever an answer shows it. None
            may raise.
    """

    time_listeners: list[Callable[[int], None]]


class ClockWatch:
    """Compares clocks. Thread-safe.

    Args:
        clock: This host's.
        on_skew: Called with how far this host is ahead of the store, ms; negative: behind.
        on_jump: Called with how far the wall clock was set ahead, ms; negative: back.
    """

    def __init__(self, clock: Clock, *, on_skew: Callable[[int], None], on_jump: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_skew = on_skew
        self._on_jump = on_jump
        self._lock = threading.Lock()
        self._looked: tuple[int, int] | None = None
        self._least: tuple[int, int] | None = None
        self._least_before: int | None = None

    def hear(self, store_now_ms: int) -> None:
        """Take in what time it is at the store."""
        before_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.now_ms()
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - before_ms > PAUSE_MS:
            return  # a pause in between would look like a jump
        with self._lock:
            jumped_ms = self._compare(wall_ms, monotonic_ms)
            skew_ms = self._lower(wall_ms - store_now_ms, monotonic_ms)
        if jumped_ms:
            self._on_jump(jumped_ms)
        self._on_skew(skew_ms)

    @staticmethod
    def is_jump(step_ms: int) -> bool:
        """Whether a step of the wall clock against the monotonic one is one."""
        return abs(step_ms) >= JUMP_MS

    def _compare(self, wall_ms: int, monotonic_ms: int) -> int:
        """Return by how much the wall clock was set since the last look; 0: it was not."""
        known, self._looked = self._looked, (wall_ms, monotonic_ms)
        jumped_ms = 0 if known is None else (wall_ms - known[0]) - (monotonic_ms - known[1])
        if not self.is_jump(jumped_ms):
            return 0
        self._least, self._least_before = None, None
        return jumped_ms

    def _lower(self, skew_ms: int, monotonic_ms: int) -> int:
        """Return the least difference of the last while: the answer was made before it was heard."""
        if self._least is None or monotonic_ms - self._least[0] >= WINDOW_MS:
            is_recent = self._least is not None and monotonic_ms - self._least[0] < 2 * WINDOW_MS
            self._least_before = self._least[1] if is_recent and self._least else None
            self._least = (monotonic_ms, skew_ms)
        self._least = (self._least[0], min(self._least[1], skew_ms))
        return self._least[1] if self._least_before is None else min(self._least[1], self._least_before)
