"""The last look, past the proxy: every row, ``icedb fsck``, and quarantine; what is wrong is noted with the judge."""

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import duckdb
from icedb_client import Client, ClientSettings
from icedb_log.clock import Clock
from icedb_log.content import decode_parts
from icedb_log.errors import IceDBError, NotFound
from icedb_log.ingest.quarantine import QuarantinedBatch, list_quarantined
from icedb_log.ingest.quarantine_ops import QuarantinedPayload, read_quarantined
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.warehouse import Warehouse

from icedb_local.chaos.batches import BatchEntry
from icedb_local.chaos.chaos_readers import ChaosReader, make_client_read
from icedb_local.chaos.content_checker import ContentChecker

CRASH_REASONS: Final = (
    "reading it failed twice, alone",
    "processes ended without a word while they read this batch, and nothing else",
)
"""What quarantine says of a batch that crashes its reader: faults may end the process of one that only raises, too."""
NEVER_MS = 2**60
"""No file may be gone while the last look reads."""


def look_at_the_end(
    warehouse: Warehouse, tables: Sequence[str], settings: StoreSettings, checker: ContentChecker, *, clock: Clock
) -> dict[str, list[str]]:
    """Read everything once more, when all has to be there, and note what is not right.

    Args:
        warehouse: Where.
        tables: Which.
        settings: How the warehouse is reached.
        checker: The judge.
        clock: For times.

    Returns:
        Why batches of each table are in quarantine.
    """
    assert settings.s3 is not None
    client = Client(
        settings=ClientSettings(
            store=settings.url,
            s3_endpoint=settings.s3.endpoint_url,
            s3_region=settings.s3.region,
            s3_read_timeout_ms=int(1000 * settings.s3.read_timeout_s),
        ),
        clock=clock,
    )
    read = make_client_read(client, http_timeout_s=int(settings.s3.read_timeout_s))
    reader = ChaosReader("last look", read, tables=tables, checker=checker, data_grace_ms=NEVER_MS, clock=clock)
    late = {table: _judge_table(warehouse, table, checker, clock=clock) for table in tables}
    with contextlib.closing(client):
        for table in tables:
            try:
                reader.look_at_the_end(table, set_aside=late[table].keys())
            except (IceDBError, duckdb.Error) as error:
                checker.note(f"cannot be read: {error}"[:500], table=table, reader="last look")
    return {table: list(reasons.values()) for table, reasons in late.items()}


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


def was_isolated(found: QuarantinedPayload, entry: BatchEntry, sent: bytes) -> bool:
    """Whether a deadly batch is in quarantine as it has to be: whole, and with what it did to its reader as reason."""
    compression = found.format.partition(".")[2]
    body = b"".join(decode_parts(found.body, compression)) if compression else found.body
    is_whole = body == sent
    is_told = any(words in found.entry.reason for words in CRASH_REASONS)
    return entry.crash is not None and found.entry.kind == "batch" and is_whole and is_told


def came_too_late(batch: QuarantinedBatch, known: Collection[str]) -> bool:
    """Whether a batch may be in quarantine: it is one of ours, and a request of it that was held back came too late.

    Nobody can tell from the log whether its rows are there already (I3); the ledger can, and the judge has looked.
    """
    return batch.kind == "batch" and batch.is_doubtful and batch.batch_id in known


def _judge_table(warehouse: Warehouse, table: str, checker: ContentChecker, *, clock: Clock) -> dict[str, str]:
    """Run ``icedb fsck --deep``, and look into quarantine; return why batches are there, by their ids."""
    store, paths = warehouse.store, warehouse.table(table).paths
    try:
        report = fsck_table(
            TableStore(store, paths), clock=clock, options=FsckOptions(footers=ParquetFooterReader(store))
        )
        refused = tuple(list_quarantined(TableStore(store, paths)))
    except IceDBError as error:
        checker.note(f"cannot be read: {error}"[:500], table=table, reader="fsck")
        return {}
    if not report.is_sound:
        findings = "; ".join(f"{one.code} {one.key}: {one.message}" for one in report.findings[:5])
        checker.note(f"icedb fsck: {findings}", table=table, reader="fsck")
    known = {entry.batch_id: entry for entry in checker.entries(table).values()}
    for batch in refused:
        entry = known.get(batch.batch_id)
        if entry is not None and entry.crash:
            found = read_quarantined(TableStore(store, paths), batch.batch_id)
            if was_isolated(found, entry, checker.encode(entry)):
                continue
        if not came_too_late(batch, known):
            words = f"batch {batch.batch_id} ({entry}) is in quarantine: {batch.reason}"
            checker.note(words, table=table, reader="quarantine")
    return {batch.batch_id: batch.reason for batch in refused}
