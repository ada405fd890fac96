"""What is left when everything is quiet: garbage, quarantine, and what ``icedb fsck`` says. Reads past the proxy."""

import contextlib
from pathlib import Path

from icedb_client.footers import ParquetFooterReader
from icedb_log.clock import Clock
from icedb_log.errors import NotFound
from icedb_log.ingest.quarantine import QuarantinedBatch, list_quarantined
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_report import FsckReport
from icedb_log.storage.object_store import list_all
from icedb_log.warehouse import Warehouse


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
