"""Two threads that look on while the demo goes on: one counts rows, the other one objects.

The watcher takes a snapshot, counts, compares, and begins again. What must hold at any moment: DuckDB finds as many
rows as the snapshot says; every batch is there whole or not at all; nothing that was there is gone; nothing is there
that nobody sent. The sampler counts the objects of tables, for the chart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_client import Snapshot
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.ingest.staging import list_all_staged
from icedb_log.keys import parse_log_key
from icedb_log.store.object_store import list_all
from icedb_log.warehouse import Warehouse

from icedb_local.background import BackgroundThread
from icedb_local.lake import Lake
from icedb_local.producers import Ledger

MIN_PAUSE_S: Final = 0.8
PAUSE_SHARE: Final = 3
MAX_PROBLEMS: Final = 5
UPLOAD_COLUMN: Final = "upload"
COUNT_INTERVAL_S: Final = 0.5
COUNT_PAUSE_SHARE: Final = 4
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
            if self._stop.wait(max(COUNT_INTERVAL_S, COUNT_PAUSE_SHARE * took_s)):
                return

    def _look(self, table: str) -> Sample:
        store, paths = self._warehouse.store, self._warehouse.table(table).paths
        log_keys = [info.key for info in list_all(store, paths.log_prefix).objects]
        self._merge_keys[table].update(key for key in log_keys if parse_log_key(key).is_merged)
        return Sample(
            at_s=(self._clock.monotonic_ms() - self._begin_ms) / 1000,
            log_files=len(log_keys),
            data_files=len(list_all(store, paths.data_prefix).objects),
            staged_batches=len(list_all_staged(self._warehouse.table(table)).batches),
        )


class Watcher(BackgroundThread):
    """A thread that reads snapshots of all tables in turn; use as a context manager."""

    def __init__(self, lake: Lake, ledgers: Mapping[str, Ledger], *, numbers_batches: bool, clock: Clock) -> None:
        super().__init__("watcher")
        self._lake = lake
        self._ledgers = ledgers
        self._numbers_batches = numbers_batches
        self._clock = clock
        self._seen: dict[str, dict[int, int]] = {}
        self._row_counts: dict[str, int] = dict.fromkeys(ledgers, 0)
        self._snapshot_ids: set[str] = set()
        self.look_count = 0
        self.problems: list[str] = []

    @property
    def snapshot_count(self) -> int:
        """Different snapshots that were counted."""
        return len(self._snapshot_ids)

    def row_count(self, table: str) -> int:
        """Rows that the last look found in a table."""
        return self._row_counts[table]

    def _run(self) -> None:
        while not self._stop.is_set():
            begin_ms = self._clock.monotonic_ms()
            for table in self._ledgers:
                try:
                    self._look(table)
                except IceDBError as error:
                    self._note(str(error))
            took_s = (self._clock.monotonic_ms() - begin_ms) / 1000
            self._stop.wait(max(MIN_PAUSE_S, PAUSE_SHARE * took_s))

    def _look(self, table: str) -> None:
        snapshot = self._lake.read_snapshot(table)
        sent = self._ledgers[table].read_sent()  # after the snapshot: whatever it holds was sent by now
        by = (UPLOAD_COLUMN,) if self._numbers_batches else ()
        counts = self._lake.count_rows(snapshot, by=by)
        self.look_count += 1
        self._snapshot_ids.add(snapshot.snapshot_id)
        row_count = sum(counts.values())
        if row_count != snapshot.row_count:
            self._note(f"{table}: {row_count:,} rows read, the snapshot says {snapshot.row_count}")
        if self._numbers_batches:
            self._compare_batches(snapshot, {key[0]: count for key, count in counts.items()}, sent)
        elif not self._row_counts[table] <= row_count <= sum(sent.values()):
            self._note(
                f"{table}: {row_count:,} rows, after {self._row_counts[table]:,}; {sum(sent.values()):,} were sent"
            )
        self._row_counts[table] = row_count

    def _compare_batches(self, snapshot: Snapshot, found: dict[int, int], sent: Mapping[int, int]) -> None:
        table = snapshot.table
        for number, count in found.items():
            if count != sent.get(number):
                self._note(f"{table}: batch {number} has {count:,} rows, {sent.get(number, 0):,} were sent")
        lost = self._seen.get(table, {}).keys() - found.keys()
        if lost:
            self._note(f"{table}: batches {sorted(lost)[:5]} were there and are gone")
        self._seen[table] = found

    def _note(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
