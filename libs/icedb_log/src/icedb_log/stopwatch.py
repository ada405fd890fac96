"""How long a committer may take between its first data file and its commit (rule W3)."""

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable


class Stopwatch:
    """Guards rule W3: a data file that was written long ago is not committed any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._monotonic_ms = clock.monotonic_ms()

    def require_within(self, limit_ms: int, *, table: str) -> None:
        """Raise Unavailable if more than ``limit_ms`` passed, by the wall clock or the monotonic one."""
        elapsed_ms = max(self._clock.now_ms() - self._wall_ms, self._clock.monotonic_ms() - self._monotonic_ms)
        if elapsed_ms > limit_ms:
            # W3: the orphan sweep may be about to delete these files; half the orphan age is the margin.
            raise Unavailable(
                f"table {table}: the data files were written over {elapsed_ms} ms, more than half the orphan age "
                f"({limit_ms} ms); not committed. Use smaller runs, or raise orphan_age_ms"
            )
