"""What ended and that nobody took away: holds, publications, quarantine, keys, scratch objects, uploads (J11).

Each kind has a rule of its own. They work from what the orphan sweep's walk found, ages go by the store's clock, and
everything goes through a :class:`~icedb_log.clean.deletion.Deleter`. A kind that fails keeps no other from going.
Staged batches are only counted: nobody but ingest takes them (I2). Seals are the vacuum's (F4), intents of dead
committers are settled by the orphan sweep (J5), fences stay for ever.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.clean.deletion import AuditLog, DeleteCandidate, Deleted, Deleter, Kind, RunFacts, open_deleter
from icedb_log.clean.publication_ending import retire_idle, sweep_publications
from icedb_log.clean.table_walk import TableWalk
from icedb_log.commit.table import Table
from icedb_log.errors import Unavailable
from icedb_log.holds.stored_holds import find_ended_holds
from icedb_log.ingest.idempotency import KEEP_MS
from icedb_log.ingest.quarantine import (
    batch_id_of,
    entry_of,
    find_reason,
    is_reason,
    list_payloads,
    reason_key,
)
from icedb_log.ingest.quarantine_ops import begin_drop
from icedb_log.ingest.staging import find_staged
from icedb_log.keys import PROBE_FOLDER, ObjectKind
from icedb_log.store.object_store import FailedDelete, ObjectInfo, ObjectStore, list_all
from icedb_log.store.store_clock import check_store_clock
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS

MAX_DROPS: Final = 1000
"""Entries of quarantine that one sweep drops: each costs a GET and a PUT. One that stays costs a GET."""

_BY_AGE: Final[Mapping[ObjectKind, tuple[Kind, str]]] = {
    "idempotency_key": ("idempotency_key", "a producer's key is remembered for a day"),  # I7
    # Said by a worker that is gone: it has no part in correctness.
    "pressure": ("leftover", "what it says about back-pressure ran out long ago"),
}
"""What goes by its age alone: what it is called in results, and why it goes."""


@dataclass(frozen=True, slots=True)
class LeftoverResult:
    """What became of a table's leftovers.

    Attributes:
        deleted: How many of each kind went.
        failed: What could not be deleted; the next sweep tries again.
        problems: Kinds that could not be looked at this time, and why.
    """

    deleted: Mapping[Kind, int]
    failed: tuple[FailedDelete, ...]
    problems: Mapping[str, str]


def find_leftover_ages(config: TableConfig) -> dict[ObjectKind, int]:
    """Return from which age on, by LastModified, an object of a kind may have ended."""
    ages: dict[ObjectKind, int] = {
        "hold": 0,  # J4: by what it says; P5: by what the head says
        "published": 0,  # P5
        "idempotency_key": KEEP_MS,  # I7
        "pressure": DAY_MS,  # it counts for an hour at most
    }
    if config.quarantine_retention_ms is not None:
        ages["quarantine"] = config.quarantine_retention_ms
    return ages


def sweep_leftovers(table: Table, walk: TableWalk, *, audit: AuditLog | None = None) -> LeftoverResult:
    """Delete what has ended. Idempotent. Only the janitor calls it (J6).

    Args:
        table: The table; its configuration need not be that of the walk. Its ``check_alive`` is called before each
            chunk is deleted; raises to stop the run.
        walk: What the orphan sweep found.
        audit: Where it is written down what is deleted, and why.

    Raises:
        UnsupportedFormat: No age can be told by this store; nothing was deleted.
        Unavailable: The store's clock jumped, or the store did not answer at all; nothing was deleted.
        IceDBError: What ``check_alive`` or the audit raised.
    """
    if any(walk.leftovers.values()):
        check_store_clock(table.store, table.paths.clock_key, clock=table.clock)
    policy = {"quarantine_retention_ms": table.config.quarantine_retention_ms}
    deleter = open_deleter(table, audit, RunFacts("leftovers", walk.store_now_ms, policy))
    deleted: dict[Kind, int] = {}
    failed: list[FailedDelete] = []
    problems: dict[str, str] = {}

    def note(kind: Kind, done: Deleted) -> None:
        deleted[kind] = len(done.keys)
        failed.extend(done.failed)

    for kind, (called, why) in _BY_AGE.items():
        infos = walk.leftovers.get(kind, ())
        note(
            called,
            deleter.delete(DeleteCandidate(i.key, called, why, ("age",), i.modified_ms, i.size_bytes) for i in infos),
        )
    others: tuple[tuple[Kind, Callable[[Table, TableWalk, Deleter], Deleted]], ...] = (
        ("hold", _delete_ended_holds),
        ("publication", _sweep_publications),
        ("quarantine", _drop_old_quarantine),
    )
    for called, sweep in others:
        try:
            note(called, sweep(table, walk, deleter))
        except Unavailable as error:
            problems[called] = str(error)
    try:
        _abort_old_uploads(table, walk)
    except Unavailable as error:
        problems["uploads"] = str(error)
    return LeftoverResult(deleted=deleted, failed=tuple(failed), problems=problems)


def sweep_probes(store: ObjectStore, *, prefix: str = "") -> Deleted:
    """Delete what probes of a store that died have left, once it is a day old. Belongs to no table; idempotent.

    Its scratch objects lie below ``prefix``, which is empty or ends with ``/``.

    Raises:
        Unavailable: The store did not answer.
    """
    listing = list_all(store, f"{prefix}{PROBE_FOLDER}/")
    old = [info for info in listing.objects if info.modified_ms + DAY_MS <= listing.store_now_ms]
    return Deleter(store).delete(
        DeleteCandidate(
            info.key, "leftover", "a probe of the store left it", ("age",), info.modified_ms, info.size_bytes
        )
        for info in old
    )


def _delete_ended_holds(table: Table, walk: TableWalk, deleter: Deleter) -> Deleted:
    """Delete leases and tags that hold nothing any more (J4): their keys are never used again. Raises Unavailable."""
    if not walk.leftovers.get("hold"):
        return Deleted()
    ended = find_ended_holds(table, data_grace_ms=table.config.data_grace_ms)
    return deleter.delete(DeleteCandidate(key, "hold", "it has ended, and holds nothing any more") for key in ended)


def _sweep_publications(table: Table, walk: TableWalk, deleter: Deleter) -> Deleted:
    """Delete what is left of publications that are over (P5). Raises Unavailable."""
    if not walk.leftovers.get("hold") and not walk.leftovers.get("published"):
        return Deleted()
    grace_ms, now_ms = table.config.data_grace_ms, walk.store_now_ms
    retire_idle(table, clock=table.clock, data_grace_ms=grace_ms, is_holding=False, latest_ms=now_ms)
    return sweep_publications(table, deleter, data_grace_ms=grace_ms)


def _abort_old_uploads(table: Table, walk: TableWalk) -> None:
    """End the uploads below the table's prefix that began an orphan age ago, at least a day, and were never finished.

    A directory store cannot tell whose they are, so no table's short orphan age ends another one's upload.
    """
    before_ms = walk.store_now_ms - max(table.config.orphan_age_ms, DAY_MS)
    table.store.abort_stale_uploads(f"{table.paths.prefix}/", before_ms=before_ms)


def _drop_old_quarantine(table: Table, walk: TableWalk, deleter: Deleter) -> Deleted:
    """Drop what waited in quarantine for longer than the table's retention, as ``icedb quarantine drop`` does.

    Entries whose retry has begun stay: whether it went through is not for a clock to say. So does what belongs to a
    batch that is staged: a flush is about to write it anew. If the store does not answer, what was dropped by then is
    dropped whole, or at the next sweep.
    """
    infos = walk.leftovers.get("quarantine", ())
    listed = {entry_of(info.key) for info in infos}
    # WARN: before reasons are read. Between the two a flush would set the batch aside, with a reason of its own, and
    # take it out of staging. What is not staged now cannot be any more: its id is too old (I3).
    staged = find_staged(table, {batch_id_of(name) for name in listed})
    free = {name for name in listed if batch_id_of(name) not in staged}
    reasons = {entry_of(info.key): info.etag for info in infos if is_reason(info.key)}
    claimed: dict[str, tuple[str, ...]] = {}
    for entry in sorted(free & reasons.keys()):
        # J6: counted when it is taken. An entry whose retry has begun is looked at and takes no place: a thousand of
        # them, the oldest, would otherwise keep all the others for ever.
        if len(claimed) >= MAX_DROPS:
            break
        payloads = begin_drop(table, entry, etag=reasons[entry])
        if payloads is not None:
            claimed[entry] = payloads
    claimed |= _find_lone_payloads(table, infos, entries=listed - claimed.keys(), free=free - reasons.keys())
    first = deleter.delete(_drop(key) for keys in claimed.values() for key in keys)
    kept = {each.key for each in first.failed}
    # The payload first: a payload without a reason nobody would find.
    gone = [entry for entry, keys in claimed.items() if not kept.intersection(keys)]
    second = deleter.delete(_drop(reason_key(table.paths, entry)) for entry in gone)
    return Deleted(first.keys | second.keys, (*first.failed, *second.failed))


def _drop(key: str) -> DeleteCandidate:
    return DeleteCandidate(
        key, "quarantine", "older than the table's retention of quarantine", ("quarantine_retention",)
    )


def _find_lone_payloads(
    table: Table, infos: Sequence[ObjectInfo], *, entries: Collection[str], free: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return old payloads without a reason, and those of which an earlier drop was cut off.

    The latter also where the batch is staged: nobody relies on an entry that is being dropped, and the batch waits
    until it is gone (I8). Its reason may be old by now, too: it goes last, and alone if the payload is gone already.
    """
    payloads: dict[str, list[str]] = {}
    for info in infos:
        entry = entry_of(info.key)
        if entry in entries:
            keys = payloads.setdefault(entry, [])
            if not is_reason(info.key):
                keys.append(info.key)
    found: dict[str, tuple[str, ...]] = {}
    for entry, keys in payloads.items():
        if len(found) >= MAX_DROPS:
            break
        reason = find_reason(table, entry)
        if reason is None and entry in free:
            found[entry] = tuple(keys)
        elif reason is not None and reason.is_being_dropped:
            # WARN: not only what this walk found old. Whoever took the entry walked later: bad rows of an earlier flush
            # were old for this walk, the batch was not, and its reason would go before it.
            found[entry] = tuple(sorted({*keys, *list_payloads(table, entry)}))
    return found
