"""W=commit: what a merge commit costs beside the data path, as the table grows.

Each turn appends a few small data files and merges them in one commit: plan, fence, log, checks, PUT. Nothing is read
or written but the log. One worker has seen the table before, as merge workers have; the other has just begun.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from icedb_log.clock import Clock, SystemClock
from icedb_log.commit.table import Table
from icedb_log.jobs import MergedGroup, MergeGroup, MergeJob
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeIndex
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.units import MIB

from bench.figures import Figure
from bench.harness import Case, Workload

LOG_FILES = 100
SMALL_FILES = 8


class LogOnlyMerger:
    """Answers for the data path: one new data file for each group, which nobody writes."""

    def __init__(self, paths: TablePaths, clock: Clock) -> None:
        self._paths, self._clock = paths, clock

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Say what a merge would have made."""
        return tuple(self._merged(group, job) for group in job.groups)

    def _merged(self, group: MergeGroup, job: MergeJob) -> MergedGroup:
        rows = sum(marker.row_count or 0 for marker in group.inputs)
        key = self._paths.data_key(partition=group.partition, file_id=self._clock.new_id())
        return MergedGroup(group, (FileMarker(key, group.size_bytes, job.time_ms, row_count=rows),), rows)


class Committer:
    """A merge worker of a table with many live data files."""

    def __init__(self, folder: Path, live_count: int, *, is_kept: bool) -> None:
        self.name = "icedb" if is_kept else "icedb, just begun"
        self._is_kept = is_kept
        self._clock = SystemClock()
        warehouse = open_warehouse(f"file://{folder}")
        self._store, self._paths = warehouse.store, warehouse.table("events").paths
        config = TableConfig.create(
            name="events", partition=(PartitionField.parse("d=day(ts)"),), sort=("ts",), target_file_bytes=128 * MIB
        )
        create_table(TableStore(self._store, self._paths), config)
        for number in range(LOG_FILES):
            self._commit([self._marker(128 * MIB, number) for _ in range(live_count // LOG_FILES)], is_merged=True)
        self._table, self._index = self._open()
        self._cpu_s = 0.0

    def prepare(self) -> None:
        """Append a few small data files; forget the table, if this worker has just begun."""
        for _ in range(SMALL_FILES):
            self._commit([self._marker(1000, LOG_FILES)], is_merged=False)
        if not self._is_kept:
            self._table, self._index = self._open()

    def run(self) -> None:
        """Merge."""
        begun_s = time.process_time()
        done = merge_table(self._table.renewed(), LogOnlyMerger(self._paths, self._clock), index=self._index)
        self._cpu_s = time.process_time() - begun_s
        if done.commit_count != 1:
            raise AssertionError(f"{done.commit_count} commits")

    def check(self) -> Sequence[Figure]:
        """Return the processor time of a commit."""
        return (Figure("processor time", "ms", 1000 * self._cpu_s),)

    def _open(self) -> tuple[Table, MergeIndex]:
        table = Table.open(TableStore(self._store, self._paths), clock=self._clock, owner="bench")
        return table, MergeIndex(self._paths, table.config)

    def _marker(self, size_bytes: int, day: int) -> FileMarker:
        partition = f"d=2026-{1 + day // 28:02d}-{1 + day % 28:02d}"
        key = self._paths.data_key(partition=partition, file_id=self._clock.new_id())
        return FileMarker(key, size_bytes, self._clock.now_ms(), row_count=1000)

    def _commit(self, markers: list[FileMarker], *, is_merged: bool) -> None:
        log = LogFile(
            self._clock.now_ms(),
            {"ts": "TIMESTAMP", "event": "VARCHAR"},
            tuple(markers),
            commit_id=self._clock.new_id(),
            inexact={},
        )
        key = self._paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id or "", is_merged=is_merged)
        self._store.put_if_absent(key, encode_log_file(log))


class CommitWorkload(Workload):
    """Tables of three sizes."""

    description = f"merge {SMALL_FILES} small data files in one commit, the data path left out, on a directory"

    def cases(self) -> Iterable[Case]:
        """Make one table after the other."""
        for live_count in (1_000, 10_000) if self.options.is_quick else (1_000, 10_000, 100_000):
            name = f"{live_count:,} live data files"
            if self.wants(name):
                systems = [
                    Committer(self.folder / f"{live_count}-{is_kept}", live_count, is_kept=is_kept)
                    for is_kept in (True, False)
                ]
                yield Case(name=name, row_count=1, systems=systems, unit="commits")
