"""A clock that moves only when told, or when somebody sleeps on it."""

from icedb_log.clock import make_uuid7_hex


class ManualClock:
    """Both of its clocks start at ``start_ms``; a sleep moves them at once.

    Attributes:
        slept_ms: Every sleep, in order.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._id_count = 0
        self.slept_ms: list[int] = []

    def now_ms(self) -> int:
        """Return the time it stands at."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the same."""
        return self._now_ms

    def sleep_ms(self, duration_ms: int) -> None:
        """Move on."""
        self.slept_ms.append(duration_ms)
        self._now_ms += duration_ms

    def advance(self, duration_ms: int) -> None:
        """Move on without a sleep."""
        self._now_ms += duration_ms

    def new_id(self) -> str:
        """Return the next id: unique, ascending, the same in each run."""
        self._id_count += 1
        return make_uuid7_hex(self._now_ms, self._id_count)
