"""One state of a table, read for a copy while everything goes on: log, what waits, and the small objects beside them.

What is read is a state that was there. Nobody is stopped; the order does it, under a lease that the caller holds (J4):

1. fences, erasures and records of imports;
2. quarantine, then staging, each batch copied away at once;
3. the log, at one moment (R1);
4. quarantine and the records of imports again, and everything else.

A fence that is older than the log knows no commit that the log lacks (F5), and an erasure that is older than the log is
done once more, not called done. A batch leaves staging after its commit (I2), so that it is in what was staged, or in
the log, or in both, which the next flush settles (I3). A refused one leaves staging for quarantine after its commit
(I5), a retried one quarantine for staging: what has left quarantine meanwhile makes the reader start again, and so does
a record of an import that has changed (N2). Must never write to the table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import orjson

from icedb_log.clean.orphans import read_orphan_record
from icedb_log.clean.pins import PIN_FIELD, decode_pin, decode_pinned_files
from icedb_log.errors import CorruptLog, NotFound, Unavailable
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import StagedBatch
from icedb_log.log.fence import read_landed
from icedb_log.log.fold import find_lost, fold
from icedb_log.log.markers import markers_of
from icedb_log.log.reader import LogReader
from icedb_log.model import LogFile, LogView, Snapshot
from icedb_log.store.object_store import ObjectInfo, StoredObject, limit_reads, list_all, map_each
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.table.stored_config import decode_table_config
from icedb_log.table.table import Table

MAX_ATTEMPTS: Final = 10
READ_THREADS: Final = 16
_NO_LIMIT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class SourceState:
    """A table as it was at one moment.

    Attributes:
        point_ms: What was acknowledged by then is in it, unix ms by the store's clock.
        view: The log.
        snapshot: Its fold.
        log: The bytes of each log file, by key.
        records: The small objects that change, by key: they are taken over together with the log.
        waiting: What is staged and not decided by a commit of the log.
        beside: Keys of objects that hardly ever change: quarantine, keys of producers, copies of damaged log files.
        pins: Those that can be read, by key.
        pinned: Data files that they name.
    """

    point_ms: int
    view: LogView
    snapshot: Snapshot
    log: Mapping[str, bytes]
    records: Mapping[str, bytes]
    waiting: tuple[StagedBatch, ...]
    beside: frozenset[str]
    pins: Mapping[str, StoredObject]
    pinned: frozenset[str]

    def data_files(self) -> frozenset[str]:
        """Return the data files that anybody may ask the copy for: by a log file that names them as live, or a pin.

        Dead ones, too, as long as their log file is there: a view may have still to take it (V2), and time travel.
        """
        named = (markers_of(file.key, file.log.markers).live_paths() for file in self.view.files)
        return self.pinned.union(*named)


class Saver(Protocol):
    """Takes what may be gone a moment later to where the copy is made."""

    def save_staged(self, batches: tuple[StagedBatch, ...]) -> frozenset[str]:
        """Copy staged batches; return the keys of those that were not there any more."""
        ...

    def save_beside(self, infos: Iterable[ObjectInfo]) -> frozenset[str]:
        """Copy objects that hardly ever change; return the keys of those that were not there any more."""
        ...


class _BodyReader(LogReader):
    """Reads a log, and keeps the bytes of each log file as they were listed (R1)."""

    def __init__(self, table: Table) -> None:
        super().__init__(
            table,
            clock=table.clock,
            max_refresh_ms=table.config.log_grace_ms // 2,  # R2
            is_compact=True,
        )
        self.bodies: dict[str, bytes] = {}

    def _decode(self, key: str, body: bytes) -> LogFile:
        self.bodies[key] = body
        return super()._decode(key, body)


def read_source(table: Table, *, point_ms: int, saver: Saver) -> SourceState:
    """Read one state of a table. Reads only; somebody holds a lease on it since ``point_ms``, and until all is copied.

    Args:
        table: The table.
        point_ms: When the lease began, by the store's clock.
        saver: Copies batches, and what is in quarantine, at once.

    Raises:
        CorruptLog: Something is damaged, or a commit is lost: a copy that is sound must not be replaced by this.
        NotFound: The table was dropped meanwhile.
        Unavailable: The store did not answer, or people kept changing quarantine or imports.
    """
    for _ in range(MAX_ATTEMPTS):
        state = _read_once(table, point_ms=point_ms, saver=saver)
        if state is not None:
            return state
    raise Unavailable(
        f"table {table.name}: quarantine or imports changed under each of {MAX_ATTEMPTS} reads; run the backup again"
    )


def _read_once(table: Table, *, point_ms: int, saver: Saver) -> SourceState | None:
    paths = table.paths
    # WARN: before the log. The other way round: a commit lands in between, the fence says so, the log of the copy lacks
    # it, and the copy counts as damaged (F5); an erasure is called deleted whose deletion the copy lacks (E3).
    landed = read_landed(table)
    before = _read_all(table, paths.fences_prefix, paths.erasures_prefix)
    imports = _list(table, paths.imports_prefix)
    quarantine = _list(table, paths.quarantine_prefix)
    # WARN: before the log. The other way round: a batch is committed in between, and is in neither (I2).
    staged = list_staged(table, limit=_NO_LIMIT).batches
    vanished = saver.save_staged(staged)
    reader = _BodyReader(table)
    view = reader.read()
    decided = {each for file in view.files for each in (*file.log.batch_ids, *file.log.refused_ids)}
    if any(batch.key in vanished and batch.batch_id not in decided for batch in staged):
        return None  # decided after the log was read, or taken away by hand
    _require_sound(table, landed, view)
    after = _list(table, paths.quarantine_prefix)
    # At once: an entry that is retried meanwhile is staged too late to be seen, and would be nowhere.
    beside = (*after.values(), *_list(table, paths.damaged_prefix).values())
    if set(quarantine) - set(after) or saver.save_beside(beside):
        return None
    records = before | _read_all(table, paths.imports_prefix, paths.views_prefix, paths.refused_prefix)
    records |= _read_all(table, paths.rebuilds_prefix, paths.fields_key)
    if _list(table, paths.imports_prefix) != imports:
        return None  # one that says committed, and is not in the log that was read (N2)
    config = table.store.get(paths.config_key).body
    if decode_table_config(paths, config).incarnation != table.config.incarnation:
        raise NotFound(f"table {table.name}: it was dropped and created anew meanwhile; run the backup again")
    waiting = tuple(batch for batch in staged if batch.batch_id not in decided)
    pins, pinned = _read_pins(table)
    known = decided | {batch.batch_id for batch in staged} | {key.rpartition("/")[2][:36] for key in after}
    keys = _find_keys(table, known, point_ms=point_ms)
    saver.save_beside(keys)  # those that are gone by now are older than a day
    return SourceState(
        point_ms=point_ms,
        view=view,
        snapshot=fold(view),
        log={file.key: reader.bodies[file.key] for file in view.files},
        records={**records, paths.config_key: config},
        pins=pins,
        waiting=waiting,
        beside=frozenset(info.key for info in (*beside, *keys)),
        pinned=pinned,
    )


def _list(table: Table, prefix: str) -> dict[str, ObjectInfo]:
    return {info.key: info for info in list_all(table.store, prefix).objects}


def _read_all(table: Table, *prefixes: str) -> dict[str, bytes]:
    """Return the bytes of all objects below some prefixes; what is deleted meanwhile is left out."""
    keys = [key for prefix in prefixes for key in _list(table, prefix)]
    return {key: stored.body for key in keys if (stored := _try_get(table, key)) is not None}


def _try_get(table: Table, key: str) -> StoredObject | None:
    try:
        return table.store.get(key)
    except NotFound:
        return None


def _require_sound(table: Table, landed: tuple[str, ...], view: LogView) -> None:
    """Refuse a log that has certainly lost a commit (F5): who copies it overwrites the copy that has it."""
    record = read_orphan_record(table)
    known = record.with_lost(find_lost(landed, view), view)
    lost = tuple(replace(record, lost=known).open_lost)
    if lost:
        raise CorruptLog(
            f"table {table.name}: {len(lost)} log files are lost, the first is {lost[0]}.jsonl: its copy is left as it "
            f"is. See `icedb fsck {table.name}`; docs/backup.md says how the table is brought back"
        )


def renew_pin(stored: StoredObject, *, now_ms: int, claimed_ms: int) -> bytes:
    """Return the bytes of a pin for a copy, where its times run from a LastModified of its own (J7).

    Args:
        stored: The pin.
        now_ms: The clock of the store that it is read from.
        claimed_ms: The clock of the store that it is written to: all of its files are there.
    """
    ends_ms = decode_pin(stored).ends_ms
    first, newline, rest = stored.body.partition(b"\n")
    metadata: dict[str, Any] = orjson.loads(first)
    metadata[PIN_FIELD] |= {"ttl_ms": None if ends_ms is None else max(1, ends_ms - now_ms), "claimed": claimed_ms}
    return orjson.dumps(metadata) + newline + rest


def _read_pins(table: Table) -> tuple[dict[str, StoredObject], frozenset[str]]:
    """Return the pins that can be read, by key, and the data files that they name."""
    found: dict[str, StoredObject] = {}
    named: set[str] = set()
    now_ms = table.read_store_clock()
    for key in _list(table, table.paths.pins_prefix):
        stored = _try_get(table, key)
        if stored is None or decode_pin(stored).status(now_ms) != "active":
            continue
        _, files = decode_pinned_files(stored)
        if files is not None:
            found[key] = stored
            named |= files
    return found, frozenset(named)


def _find_keys(table: Table, known: set[str], *, point_ms: int) -> list[ObjectInfo]:
    """Return the records of producers' keys whose batches are in the copy (I7).

    WARN: not those that were bound just now. The batch is staged after the copy has listed staging; a producer who
    sends everything again after a disaster is told that this one is there, and it is lost.
    """
    listed = list(_list(table, table.paths.idempotency_prefix).values())
    young = [info for info in listed if info.modified_ms >= point_ms - MAX_STORE_GAP_MS]
    threads = limit_reads(table.store, READ_THREADS)
    bodies = map_each(lambda info: _try_get(table, info.key), young, threads=threads, name="icedb-backup-keys")
    foreign = {
        info.key
        for info, stored in zip(young, bodies, strict=True)
        if stored is None or str(orjson.loads(stored.body).get("batch_id")) not in known
    }
    return [info for info in listed if info.key not in foreign]
