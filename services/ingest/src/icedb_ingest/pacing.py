"""When each table's next commit is due: the flush interval, stretched by back-pressure.

Owns the time of each table's last commit. Pure but for the clock. A process knows its own commits at once and those of
other workers when it looks at the log, so that two workers on one table keep about one pace.
"""

from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.ingest.pressure import Pressure
from icedb_log.units import SECOND_MS

from icedb_ingest.settings import IngestSettings

LEAST_STRETCHED_MS = SECOND_MS
"""What the stretch works on when the flush interval is shorter: sixty times nothing would be nothing."""


@dataclass(frozen=True, slots=True)
class _Table:
    committed_ms: int | None = None
    interval_ms: int = 0


class Pacer:
    """Says how long a table has to wait for its next commit.

    Args:
        clock: Monotonic time.
        settings: The interval without pressure, and the longest.
    """

    def __init__(self, clock: Clock, *, settings: IngestSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._tables: dict[str, _Table] = {}

    def interval_ms(self, pressure: Pressure) -> int:
        """Return the least time between two commits under a pressure, milliseconds."""
        plain_ms = self._settings.flush_interval_ms
        stretched_ms = plain_ms + max(plain_ms, LEAST_STRETCHED_MS) * (pressure.stretch - 1)
        return int(min(stretched_ms, self._settings.flush_max_interval_ms))

    def record_commit(self, table: str, *, age_ms: int = 0) -> None:
        """Note that a commit landed ``age_ms`` ago, whoever made it; an older one than is known changes nothing."""
        known = self._table(table)
        committed_ms = self._clock.monotonic_ms() - age_ms
        if known.committed_ms is None or committed_ms > known.committed_ms:
            self._tables[table] = _Table(committed_ms, known.interval_ms)

    def record_pressure(self, table: str, pressure: Pressure) -> None:
        """Note how much the table has to slow down from now on."""
        self._tables[table] = _Table(self._table(table).committed_ms, self.interval_ms(pressure))

    def due_in_ms(self, table: str) -> int:
        """Return how long the table's next commit has to wait; 0 when it is due."""
        known = self._table(table)
        if known.committed_ms is None:
            return 0
        return max(0, known.committed_ms + known.interval_ms - self._clock.monotonic_ms())

    def _table(self, table: str) -> _Table:
        return self._tables.get(table) or _Table(interval_ms=self._settings.flush_interval_ms)
