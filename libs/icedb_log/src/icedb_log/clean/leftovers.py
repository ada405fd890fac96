"""What ended and that nobody took away: leases, pins, quarantine, producers' keys, scratch objects, uploads (rule J11).

Each kind has a rule of its own, one small function each. They work from what the orphan sweep's walk found, ages go by
the store's clock, and everything goes through a :class:`~icedb_log.clean.deletion.Deleter`. A kind that fails keeps
no other from going. Staged batches are only counted: nobody but ingest takes them (I2). Seals are the vacuum's (F4),
intents of dead committers are settled by the orphan sweep (J5), fences stay for ever.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from icedb_log.clean.audit import AuditLog, RunFacts
from icedb_log.clean.deletion import Deleted, Deleter, Doomed, Kind
from icedb_log.clean.leases import MAX_LEASE_TTL_MS
from icedb_log.clean.pin_object import PENDING_TTL_MS
from icedb_log.clean.pins import find_ended_pins
from icedb_log.errors import Unavailable
from icedb_log.ingest.idempotency import KEEP_MS
from icedb_log.ingest.quarantine import (
    batch_id_of_object,
    entry_of_object,
    find_reason,
    is_being_dropped,
    is_reason,
    reason_key,
)
from icedb_log.ingest.quarantine_ops import begin_drop
from icedb_log.ingest.staging import find_staged
from icedb_log.object_kinds import ObjectKind
from icedb_log.store.object_store import PROBE_FOLDER, FailedDelete, ObjectInfo, ObjectStore, list_all
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS

MAX_DROPS: Final = 1000
"""Entries of quarantine that one sweep drops: each costs a GET and a PUT. One that stays costs a GET."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a walk through a table found that may have ended.

    Attributes:
        store_now_ms: The time that ages were measured against.
        found: Objects by kind, old enough by :func:`find_leftover_ages`.
        late_staged_count: Batches that have been staged for longer than a day.
        oldest_staged_ms: LastModified of the one that has been staged for longest; ``None``: nothing is staged.
    """

    store_now_ms: int
    found: Mapping[ObjectKind, Sequence[ObjectInfo]] = field(default_factory=dict)
    late_staged_count: int = 0
    oldest_staged_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeftoverResult:
    """What became of a table's leftovers.

    Attributes:
        deleted: How many of each kind went.
        failed: What could not be deleted; the next sweep tries again.
        aborted_uploads: Uploads that were begun long ago and never finished.
        problems: Kinds that could not be looked at this time, and why.
        late_staged_count: Batches that have been staged for longer than a day: nobody flushes this table.
        oldest_staged_age_ms: Age of the batch that has been staged for longest; 0: nothing is staged.
    """

    deleted: Mapping[Kind, int]
    failed: tuple[FailedDelete, ...]
    aborted_uploads: int
    problems: Mapping[str, str]
    late_staged_count: int
    oldest_staged_age_ms: int


def find_leftover_ages(config: TableConfig) -> dict[ObjectKind, int]:
    """Return from which age on, by LastModified, an object of a kind may have ended."""
    ages: dict[ObjectKind, int] = {
        # No lease lasts longer than that from its last write on, whatever it says; a day more for whoever is late (J4).
        "lease": MAX_LEASE_TTL_MS + DAY_MS,
        "pin": min(PENDING_TTL_MS, config.data_grace_ms),  # no pin holds nothing earlier (J7)
        "idempotency_key": KEEP_MS,  # I7
        "pressure": DAY_MS,  # it counts for an hour at most
    }
    if config.quarantine_retention_ms is not None:
        ages["quarantine"] = config.quarantine_retention_ms
    return ages


def sweep_leftovers(table: Table, leftovers: Leftovers, *, audit: AuditLog | None = None) -> LeftoverResult:
    """Delete what has ended. Idempotent. Only the janitor calls it (J6).

    Args:
        table: The table; its configuration need not be that of the walk. Its ``check_alive`` is called before each
            chunk is deleted; raises to stop the run.
        leftovers: What the orphan sweep's walk found.
        audit: Where it is written down what is deleted, and why.

    Raises:
        NotFound: The table is dropped, or gone.
        Fenced: It is another one of the same name than the configuration's; nothing was deleted.
        UnsupportedFormat: No age can be told by this store; nothing was deleted.
        Unavailable: The store's clock jumped, or the store did not answer at all; nothing was deleted.
        IceDBError: What ``check_alive`` or the audit raised.
    """
    store, paths, config, clock = table.store, table.paths, table.config, table.clock
    require_same_table(TableStore(store, paths), config)  # T4: after the listing
    if any(leftovers.found.values()):
        check_store_clock(store, paths.clock_key, clock=clock)
    facts = RunFacts("leftovers", leftovers.store_now_ms, {"quarantine_retention_ms": config.quarantine_retention_ms})
    deleter = Deleter(store, audit=audit.begin(facts) if audit else None, check_alive=table.check_alive)
    done: list[tuple[Kind, Deleted]] = [
        ("lease", deleter.delete(find_ended_leases(leftovers))),
        ("idempotency_key", deleter.delete(find_old_keys(leftovers))),
        ("leftover", deleter.delete(find_old_pressure(leftovers))),
    ]
    problems: dict[str, str] = {}
    try:
        done.append(("pin", delete_ended_pins(TableStore(store, paths), leftovers, config=config, deleter=deleter)))
    except Unavailable as error:
        problems["pin"] = str(error)
    try:
        done.append(("quarantine", drop_old_quarantine(TableStore(store, paths), leftovers, deleter=deleter)))
    except Unavailable as error:
        problems["quarantine"] = str(error)
    aborted = 0
    try:
        aborted = abort_old_uploads(TableStore(store, paths), config=config, store_now_ms=leftovers.store_now_ms)
    except Unavailable as error:
        problems["uploads"] = str(error)
    oldest_ms = leftovers.oldest_staged_ms
    return LeftoverResult(
        deleted={kind: len(each.keys) for kind, each in done},
        failed=tuple(failed for _, each in done for failed in each.failed),
        aborted_uploads=aborted,
        problems=problems,
        late_staged_count=leftovers.late_staged_count,
        oldest_staged_age_ms=0 if oldest_ms is None else max(0, leftovers.store_now_ms - oldest_ms),
    )


def find_ended_leases(leftovers: Leftovers) -> Iterable[Doomed]:
    """Return the leases that ended a day ago or longer (J4): nobody may renew one that has ended."""
    return _doom(leftovers, "lease", "lease", "it ended more than a day ago")


def delete_ended_pins(table: TableStore, leftovers: Leftovers, *, config: TableConfig, deleter: Deleter) -> Deleted:
    """Delete the pins that hold nothing any more (J7): their keys are never used again. Raises Unavailable."""
    if not leftovers.found.get("pin"):
        return Deleted(frozenset(), ())
    ended = find_ended_pins(table, data_grace_ms=config.data_grace_ms)
    return deleter.delete(
        Doomed(key, "pin", "it ended a grace period ago, and holds nothing any more") for key in ended
    )


def find_old_keys(leftovers: Leftovers) -> Iterable[Doomed]:
    """Return the producers' keys that are forgotten (I7)."""
    return _doom(leftovers, "idempotency_key", "idempotency_key", "a producer's key is remembered for a day")


def find_old_pressure(leftovers: Leftovers) -> Iterable[Doomed]:
    """Return what was said about back-pressure by a worker that is gone: it has no part in correctness."""
    return _doom(leftovers, "pressure", "leftover", "what it says about back-pressure ran out long ago")


def drop_old_quarantine(table: TableStore, leftovers: Leftovers, *, deleter: Deleter) -> Deleted:
    """Drop what waited in quarantine for longer than the table's retention, as ``icedb quarantine drop`` does.

    Entries whose retry has begun stay: whether it went through is not for a clock to say. So does what belongs to a
    batch that is staged: a flush is about to write it anew.

    Raises:
        Unavailable: The store did not answer; what was dropped by then is dropped whole, or at the next sweep.
    """
    infos = leftovers.found.get("quarantine", ())
    listed = {entry_of_object(info.key) for info in infos}
    # WARN: before reasons are read. Between the two a flush would set the batch aside, with a reason of its own, and
    # take it out of staging. What is not staged now cannot be any more: its id is too old (I3).
    staged = find_staged(table, {batch_id_of_object(name) for name in listed})
    free = {name for name in listed if batch_id_of_object(name) not in staged}
    reasons = {entry_of_object(info.key): info.etag for info in infos if is_reason(info.key)}
    claimed: dict[str, tuple[str, ...]] = {}
    for batch_id in sorted(free & reasons.keys()):
        # J6: counted when it is taken. An entry whose retry has begun is looked at and takes no place: a thousand of
        # them, the oldest, would otherwise keep all the others for ever.
        if len(claimed) >= MAX_DROPS:
            break
        payloads = begin_drop(table, batch_id, etag=reasons[batch_id])
        if payloads is not None:
            claimed[batch_id] = payloads
    claimed |= _find_lone_payloads(table, infos, batch_ids=listed - claimed.keys(), free=free - reasons.keys())
    first = deleter.delete(_drop(key) for keys in claimed.values() for key in keys)
    kept = {each.key for each in first.failed}
    # The payload first: a payload without a reason nobody would find.
    gone = [batch_id for batch_id, keys in claimed.items() if not kept.intersection(keys)]
    second = deleter.delete(_drop(reason_key(table.paths, batch_id)) for batch_id in gone)
    return Deleted(first.keys | second.keys, (*first.failed, *second.failed))


def abort_old_uploads(table: TableStore, *, config: TableConfig, store_now_ms: int) -> int:
    """End the uploads below the table's prefix that began an orphan age ago, at least a day, and were never finished.

    A directory store cannot tell whose they are, so no table's short orphan age ends another one's upload.

    Raises:
        Unavailable: The store did not answer, or refused.
    """
    before_ms = store_now_ms - max(config.orphan_age_ms, DAY_MS)
    return table.store.abort_stale_uploads(f"{table.paths.prefix}/", before_ms=before_ms)


def sweep_probes(store: ObjectStore, *, prefix: str = "") -> Deleted:
    """Delete what probes of a store that died have left, once it is a day old. Belongs to no table; idempotent.

    Args:
        store: The object store.
        prefix: Where its scratch objects lie: empty, or ending with ``/``.

    Raises:
        Unavailable: The store did not answer.
    """
    listing = list_all(store, f"{prefix}{PROBE_FOLDER}/")
    old = [info for info in listing.objects if info.modified_ms + DAY_MS <= listing.store_now_ms]
    return Deleter(store).delete(
        Doomed(info.key, "leftover", "a probe of the store left it", ("age",), info.modified_ms, info.size_bytes)
        for info in old
    )


def _doom(leftovers: Leftovers, kind: ObjectKind, doomed_kind: Kind, why: str) -> Iterable[Doomed]:
    return (
        Doomed(info.key, doomed_kind, why, ("age",), info.modified_ms, info.size_bytes)
        for info in leftovers.found.get(kind, ())
    )


def _drop(key: str) -> Doomed:
    return Doomed(key, "quarantine", "older than the table's retention of quarantine", ("quarantine_retention",))


def _find_lone_payloads(
    table: TableStore,
    infos: Sequence[ObjectInfo],
    *,
    batch_ids: Collection[str],
    free: Collection[str],
) -> dict[str, tuple[str, ...]]:
    """Return old payloads without a reason, and those of which an earlier drop was cut off.

    The latter also where the batch is staged: nobody relies on an entry that is being dropped, and the batch waits
    until it is gone (I8). Its reason may be old by now, too: it goes last, and alone if the payload is gone already.
    """
    payloads: dict[str, list[str]] = {}
    for info in infos:
        batch_id = entry_of_object(info.key)
        if batch_id in batch_ids:
            keys = payloads.setdefault(batch_id, [])
            if not is_reason(info.key):
                keys.append(info.key)
    found: dict[str, tuple[str, ...]] = {}
    for batch_id, keys in payloads.items():
        if len(found) >= MAX_DROPS:
            break
        reason = find_reason(table, batch_id)
        if (reason is None and batch_id in free) or (reason is not None and is_being_dropped(reason)):
            found[batch_id] = tuple(keys)
    return found
