"""Counts the objects of tables again and again, for the chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.keys import parse_log_key
from icedb_log.store.object_store import list_all
from icedb_log.warehouse import Warehouse

from icedb_local.background import BackgroundThread

INTERVAL_S: Final = 0.5
PAUSE_SHARE: Final = 4
"""Listings cost a server something: it is left alone for this many times as long as they took."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one look at a table found.

    Attributes:
        at_s: Seconds since the sampler started.
        log_files: Objects below ``_log``.
        data_files: Objects below ``_data``, live or waiting for their deletion.
        staged_batches: Objects that wait in staging.
    """

    at_s: float
    log_files: int
    data_files: int
    staged_batches: int


class Sampler(BackgroundThread):
    """A thread that counts objects; use as a context manager."""

    def __init__(self, warehouse: Warehouse, tables: Sequence[str], *, clock: Clock) -> None:
        super().__init__("sampler")
        self._warehouse = warehouse
        self._clock = clock
        self._begin_ms = clock.monotonic_ms()
        self._samples: dict[str, list[Sample]] = {table: [] for table in tables}
        self._merge_keys: dict[str, set[str]] = {table: set() for table in tables}

    @property
    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """All samples of each table, ascending in time."""
        return {table: tuple(samples) for table, samples in self._samples.items()}

    def merge_count(self, table: str) -> int:
        """Return how many commits of merges were seen in a table's log."""
        return len(self._merge_keys[table])

    def _run(self) -> None:
        while True:
            begin_ms = self._clock.monotonic_ms()
            for table, samples in self._samples.items():
                try:
                    samples.append(self._look(table))
                except Unavailable:
                    continue  # one point less in a chart; what matters is checked elsewhere
            took_s = (self._clock.monotonic_ms() - begin_ms) / 1000
            if self._stop.wait(max(INTERVAL_S, PAUSE_SHARE * took_s)):
                return

    def _look(self, table: str) -> Sample:
        store, paths = self._warehouse.store, self._warehouse.table(table).paths
        log_keys = [info.key for info in list_all(store, paths.log_prefix).objects]
        self._merge_keys[table].update(key for key in log_keys if parse_log_key(key).is_merged)
        return Sample(
            at_s=(self._clock.monotonic_ms() - self._begin_ms) / 1000,
            log_files=len(log_keys),
            data_files=len(list_all(store, paths.data_prefix).objects),
            staged_batches=len(list_all(store, paths.staging_prefix).objects),
        )
