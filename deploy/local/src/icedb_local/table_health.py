"""What the log and the store say about a table: files per partition, and what is dead but still there."""

import dataclasses
from collections import defaultdict
from dataclasses import dataclass

from icedb_client import Snapshot
from icedb_log.clock import Clock
from icedb_log.ingest.staging import list_all_staged
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse


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
    """What a quiet table does not have once its grace periods have passed.

    Attributes:
        dead_data_files: Objects below ``_data`` that are not live.
        missing_data_files: Live data files that are not there.
        dead_log_files: Log files that a merge has replaced; seals are kept for days (F4) and do not count.
        tombstones: Markers of dead objects in log files, but for those of seals.
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
        return sum(dataclasses.astuple(self))


def group_by_partition(snapshot: Snapshot) -> tuple[PartitionFiles, ...]:
    """Return the files of each partition, ascending by path."""
    sizes: dict[str, list[int]] = defaultdict(list)
    rows: dict[str, int] = defaultdict(int)
    for file in snapshot.files:
        partition = "/".join(f"{name}={value}" for name, value in file.partition.items())
        sizes[partition].append(file.size_bytes)
        rows[partition] += file.row_count or 0
    return tuple(PartitionFiles(name, tuple(sorted(sizes[name])), rows[name]) for name in sorted(sizes))


def find_leftovers(warehouse: Warehouse, table: str, *, clock: Clock, with_orphans: bool = True) -> Leftovers:
    """Compare the store with the log; the log is read after the listings. Raises what the reader does.

    Args:
        warehouse: Where.
        table: Which.
        clock: For the reader.
        with_orphans: Whether data files that no log file names count: there was time to sweep them.
    """
    paths = warehouse.table(table).paths
    present = {info.key for info in list_all(warehouse.store, paths.data_prefix).objects}
    staged = list_all_staged(warehouse.table(table)).batches
    view = LogReader(TableStore(warehouse.store, paths), clock=clock).read()
    state = fold(view)
    live = {marker.path for marker in state.live}
    dead_log_keys = state.log_tombstoned_ms.keys() - {file.key for file in view.files if file.log.is_seal}
    return Leftovers(
        dead_data_files=len(present - live if with_orphans else present & state.tombstoned_ms.keys()),
        missing_data_files=len(live - present),
        dead_log_files=sum(file.key in dead_log_keys for file in view.files),
        tombstones=len(state.tombstoned_ms) + len(dead_log_keys),
        staged_batches=len(staged),
    )
