"""Back-pressure: how much a table's log and merge backlog slow ingest down. See ``docs/protocol.md``, "Back-pressure".

Owns the measure (pure), ``_icedb/pressure.json``, by which the ingest worker tells every front end, and the gate
that front ends ask. Nothing here is needed for correctness: an absent, old or unreadable object means no pressure.
"""

from dataclasses import dataclass
from typing import Literal

from icedb_log.clock import Clock
from icedb_log.keys import TablePaths
from icedb_log.object_store import ObjectStore
from icedb_log.table_config import TableConfig

Level = Literal["none", "slow", "stop"]


@dataclass(frozen=True, slots=True)
class Pressure:
    """How a table stands.

    Attributes:
        level: ``none``; ``slow``: flushes come less often; ``stop``: front ends refuse batches, too.
        stretch: Factor of the flush interval, 1 to the largest.
        reason: Which bound was passed by how much, in words for operators and producers; empty for ``none``.
        retry_after_ms: When a refused producer should try again.
    """

    level: Level = "none"
    stretch: float = 1.0
    reason: str = ""
    retry_after_ms: int = 0


def measure_pressure(*, log_files: int, backlog_files: int, config: TableConfig) -> Pressure:
    """Return how much a table should slow its producers down. Pure."""
    raise NotImplementedError


def publish_pressure(store: ObjectStore, paths: TablePaths, pressure: Pressure, *, clock: Clock) -> None:
    """Tell front ends. Idempotent; ``none`` removes what was said before."""
    raise NotImplementedError


class PressureGate:
    """Asks before a batch is accepted. Thread-safe; one small GET for each table and ``max_age_ms``.

    Args:
        store: The object store.
        clock: Monotonic time only: ages do not depend on anybody's wall clock.
        max_age_ms: How old an answer may be.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock, max_age_ms: int = 1000) -> None:
        raise NotImplementedError

    def check(self, paths: TablePaths) -> None:
        """Return if the table takes batches. Raises Overloaded (with ``retry_after_ms``) if it does not."""
        raise NotImplementedError
