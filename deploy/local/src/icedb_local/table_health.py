"""What the log and the store say about a table: files per partition, and what is dead but still there."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from icedb_client import Snapshot
from icedb_log.clock import Clock
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader

from icedb_local.lake import Lake


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The live data files of one partition.

    Attributes:
        partition: Its path.
        sizes_bytes: Size of each file, ascending.
        row_count: Rows in all of them.
    """

    partition: str
    sizes_bytes: tuple[int, ...]
    row_count: int

    def is_merged(self, target_file_bytes: int) -> bool:
        """Whether no two files are left that fit into one file of the target size."""
        return len(self.sizes_bytes) <= 1 or sum(self.sizes_bytes[:2]) > target_file_bytes


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a cleaned table does not have.

    Attributes:
        dead_data_files: Objects below ``_data`` that are not live.
        missing_data_files: Live data files that are not there.
        dead_log_files: Log files that a merge has replaced.
        tombstones: Markers of dead objects in log files.
        staged_batches: Objects in staging.
    """

    dead_data_files: int
    missing_data_files: int
    dead_log_files: int
    tombstones: int
    staged_batches: int

    @property
    def total(self) -> int:
        """All of it."""
        return (
            self.dead_data_files + self.missing_data_files + self.dead_log_files + self.tombstones + self.staged_batches
        )


def group_by_partition(snapshot: Snapshot) -> tuple[PartitionFiles, ...]:
    """Return the files of each partition, ascending by path."""
    sizes: dict[str, list[int]] = defaultdict(list)
    rows: dict[str, int] = defaultdict(int)
    for file in snapshot.files:
        partition = "/".join(f"{name}={value}" for name, value in file.partition.items())
        sizes[partition].append(file.size_bytes)
        rows[partition] += file.row_count or 0
    return tuple(PartitionFiles(name, tuple(sorted(sizes[name])), rows[name]) for name in sorted(sizes))


def find_leftovers(lake: Lake, table: str, *, clock: Clock) -> Leftovers:
    """Compare the store with the log. Reads the log after the listing of the data files."""
    paths = lake.paths(table)
    present = {info.key for info in lake.list_objects(paths.data_prefix)}
    staged = lake.list_objects(paths.staging_prefix)
    view = LogReader(lake.warehouse.store, paths, clock=clock).read()
    snapshot = fold(view)
    live = {marker.path for marker in snapshot.live}
    return Leftovers(
        dead_data_files=len(present - live),
        missing_data_files=len(live - present),
        dead_log_files=sum(file.key in snapshot.log_tombstoned_ms for file in view.files),
        tombstones=len(snapshot.tombstoned_ms) + len(snapshot.log_tombstoned_ms),
        staged_batches=len(staged),
    )


def read_quarantine_reasons(lake: Lake, table: str) -> Sequence[str]:
    """Return why batches were refused, one reason each."""
    return [batch.reason for batch in list_quarantined(lake.warehouse.store, lake.paths(table))]
