"""One state of a table, read for a copy while everything goes on: the log, what waits, and the records that survive.

What is read is a state that was there. Nobody is stopped; the order does it, under a lease that the caller holds (J4):

1. fences and erasures;
2. quarantine, then staging, each batch copied away at once;
3. the log, at one moment (R1);
4. quarantine again, imports, views, and the keys of producers.

A fence that is older than the log knows no commit that the log lacks (F5), and an erasure that is older than the log is
done once more, not called done. A batch leaves staging after its commit (I2), so that it is in what was staged, or in
the log, or in both, which the next flush settles (I3). A refused one leaves staging for quarantine after its commit
(I5), a retried one quarantine for staging: what has left quarantine meanwhile makes the reader start again. Must never
write to the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from icedb_log.backup.copy import TableCopy
from icedb_log.batch_ids import BatchIds
from icedb_log.commit.fence import read_landed
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, NotFound, Unavailable
from icedb_log.imports.import_records import find_import_state, read_records
from icedb_log.ingest.staging import list_all_staged
from icedb_log.log.fold import Snapshot, find_lost, fold, named_paths
from icedb_log.model import LogView
from icedb_log.store.object_store import ObjectInfo, limit_reads, list_all, map_each
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config

MAX_ATTEMPTS: Final = 10
READ_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class SourceState:
    """A table as it was at one moment.

    Attributes:
        view: The log.
        snapshot: Its fold.
        records: The objects beside log and data that survive, by key; ``None``: the copy has it already.
        waiting: Names of what is staged and not decided by a commit of the log.
    """

    view: LogView
    snapshot: Snapshot
    records: Mapping[str, bytes | None]
    waiting: frozenset[str]


def read_source(table: Table, *, point_ms: int, copy: TableCopy) -> SourceState:
    """Read one state of a table. Reads only; somebody holds a lease on it since ``point_ms``, and until all is copied.

    Args:
        table: The table.
        point_ms: When the lease began, by the store's clock.
        copy: Takes at once what may be gone a moment later: batches, and what is in quarantine.

    Raises:
        CorruptLog: Something is damaged, or a commit is lost: a copy that is sound must not be replaced by this.
        NotFound: The table was dropped meanwhile.
        Unavailable: The store did not answer, or people kept changing quarantine.
    """
    for _ in range(MAX_ATTEMPTS):
        state = _read_once(table, point_ms=point_ms, copy=copy)
        if state is not None:
            return state
    raise Unavailable(
        f"table {table.name}: quarantine changed under each of {MAX_ATTEMPTS} reads; run the backup again"
    )


def _read_once(table: Table, *, point_ms: int, copy: TableCopy) -> SourceState | None:
    paths = table.paths
    # WARN: before the log. The other way round: a commit lands in between, the fence says so, the log of the copy lacks
    # it, and the copy counts as damaged (F5); an erasure is called deleted whose deletion the copy lacks (E3).
    landed = read_landed(table)
    records: dict[str, bytes | None] = {**_read_all(table, paths.fences_prefix, paths.erasures_prefix)}
    quarantine = _list(table, paths.quarantine_prefix)
    # WARN: before the log. The other way round: a batch is committed in between, and is in neither (I2).
    staged = list_all_staged(table).batches
    vanished = copy.save_staged(table, staged)
    view = table.read_log()
    decided_ids = {each for file in view.files for each in (*file.log.batch_ids, *file.log.refused_ids)}
    decided = BatchIds(decided_ids)
    if any(batch.name in vanished and batch.batch_id not in decided for batch in staged):
        return None  # decided after the log was read, or taken away by hand
    if lost := find_lost(landed, view):
        raise CorruptLog(
            f"table {table.name}: {len(lost)} log files are lost, the first is {lost[0]}.jsonl: its copy is left as it "
            f"is. See `icedb fsck {table.name}`; docs/backup.md says how the table is brought back"
        )
    after = _list(table, paths.quarantine_prefix)
    # At once: an entry that is retried meanwhile is staged too late to be seen, and would be nowhere.
    new = copy.find_missing(paths.quarantine_prefix, after.values())
    if quarantine.keys() - after.keys() or copy.save(table.store, new):
        return None
    records |= dict.fromkeys(after)
    records |= _read_imports(table, view)
    records |= _read_all(table, paths.numbered(1).views_prefix, paths.refused_prefix, paths.fields_key)
    known = decided_ids | {batch.batch_id for batch in staged} | {key.rpartition("/")[2][:36] for key in after}
    records |= _read_keys(table, known, point_ms=point_ms, copy=copy)
    records[paths.config_key] = table.store.get(paths.config_key).body
    read_table_config(table)
    if paths.number > 1:  # T4: the name leads to it there, too
        first = paths.numbered(1).config_key
        records[first] = table.store.get(first).body
    waiting = frozenset(batch.name for batch in staged if batch.batch_id not in decided)
    return SourceState(view, fold(view), records, waiting)


def _list(table: TableStore, prefix: str) -> dict[str, ObjectInfo]:
    return {info.key: info for info in list_all(table.store, prefix).objects}


def _read_all(table: TableStore, *prefixes: str) -> dict[str, bytes]:
    """Return the bytes of all objects below some prefixes; what is deleted meanwhile is left out."""
    keys = [key for prefix in prefixes for key in _list(table, prefix)]
    return {key: body for key in keys if (body := _try_get(table, key)) is not None}


def _try_get(table: TableStore, key: str) -> bytes | None:
    try:
        return table.store.get(key).body
    except NotFound:
        return None


def _read_imports(table: TableStore, view: LogView) -> dict[str, bytes]:
    """Return the records of imports, read after the log, each as that log says (N3).

    One that says ``committed`` may have landed after the log was read; of one that is ``pending`` the log of the copy,
    which is folded, would not tell any more.
    """
    named = named_paths(view.files)
    found: dict[str, bytes] = {}
    for record in read_records(table):
        if record.state != "lost":
            state = find_import_state(table.store, record, named=named) or record.state
            change = {"state": state, "sources": () if state == "lost" else record.sources}
            record = record.model_copy(update=change)  # noqa: PLW2901
        found[table.paths.import_key(record.import_id)] = record.encode()
    return found


def _read_keys(table: TableStore, known: set[str], *, point_ms: int, copy: TableCopy) -> dict[str, bytes | None]:
    """Return the records of producers' keys whose batches are in the copy (I7).

    WARN: not those that were bound just now. The batch is staged after the copy has listed staging; a producer who
    sends everything again after a disaster is told that this one is there, and it is lost.
    """
    listed = list(_list(table, table.paths.idempotency_prefix).values())
    new = copy.find_missing(table.paths.idempotency_prefix, listed)
    found: dict[str, bytes | None] = dict.fromkeys({info.key for info in listed} - {info.key for info in new})
    threads = limit_reads(table.store, READ_THREADS)
    bodies = map_each(lambda info: _try_get(table, info.key), new, threads=threads, name="icedb-backup-keys")
    for info, body in zip(new, bodies, strict=True):
        is_old = info.modified_ms < point_ms - MAX_STORE_GAP_MS
        if body is not None and (is_old or str(orjson.loads(body).get("batch_id")) in known):
            found[info.key] = body
    return found
