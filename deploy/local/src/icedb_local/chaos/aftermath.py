"""What is left when everything is quiet: garbage, quarantine, and what ``icedb fsck`` says. Reads past the proxy."""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from icedb_client.footers import ParquetFooterReader
from icedb_log.clock import Clock
from icedb_log.errors import NotFound
from icedb_log.ingest.quarantine import QuarantinedBatch, list_quarantined
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_report import FsckReport
from icedb_log.storage.object_store import list_all
from icedb_log.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Garbage:
    """What a quiet table does not have after its grace periods.

    Attributes:
        dead_data_files: Objects below ``_data`` that are not live.
        missing_data_files: Live data files that are not there.
        dead_log_files: Log files that a merge has replaced; seals are kept for days (F4) and do not count.
        tombstones: Markers of dead data files.
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


def find_garbage(warehouse: Warehouse, table: str, *, clock: Clock, with_orphans: bool) -> Garbage:
    """Compare the store with the log; the log is read after the listings. Raises what the reader does.

    Args:
        warehouse: Where.
        table: Which.
        clock: For the reader.
        with_orphans: Whether data files that no log file names count: there was time to sweep them.
    """
    paths = warehouse.table(table)
    present = {info.key for info in list_all(warehouse.store, paths.data_prefix).objects}
    staged = list_all(warehouse.store, paths.staging_prefix).objects
    view = LogReader(warehouse.store, paths, clock=clock).read()
    state = fold(view)
    live = {marker.path for marker in state.live}
    return Garbage(
        dead_data_files=len(present - live if with_orphans else present & set(state.tombstoned_ms)),
        missing_data_files=len(live - present),
        dead_log_files=sum(file.key in state.log_tombstoned_ms and not file.log.is_seal for file in view.files),
        tombstones=len(state.tombstoned_ms),
        staged_batches=len(staged),
    )


def save_bucket(warehouse: Warehouse, folder: Path) -> int:
    """Copy all objects into a folder: the server keeps them in memory only. Returns how many."""
    count = 0
    for info in list_all(warehouse.store, f"{warehouse.root}/").objects:
        path = folder / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(NotFound):
            path.write_bytes(warehouse.store.get(info.key).body)
            count += 1
    return count


def check_table(warehouse: Warehouse, table: str, *, clock: Clock) -> FsckReport:
    """Run ``icedb fsck --deep``."""
    options = FsckOptions(footers=ParquetFooterReader(warehouse.store))
    return fsck_table(warehouse.store, warehouse.table(table), clock=clock, options=options)


def read_quarantine(warehouse: Warehouse, table: str) -> tuple[QuarantinedBatch, ...]:
    """Return what was refused."""
    return tuple(list_quarantined(warehouse.store, warehouse.table(table)))
