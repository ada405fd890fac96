"""How publications end: retired, withdrawn, swept (P5, E5). Only the janitor and erasures do any of it.

Whatever ends one changes the head first, by compare-and-set, and everything else follows from that: who began before
has lost, and what has left holds for a grace period more. Nothing here trusts that a publisher is dead.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from icedb_log.clean.deletion import DeleteCandidate, Deleted, Deleter
from icedb_log.clock import Clock
from icedb_log.errors import CommitConflict, CommitOutcomeUnknown
from icedb_log.holds.tags import PENDING_TTL_MS
from icedb_log.keys import publication_id_of
from icedb_log.publish.head import (
    Head,
    Publications,
    Record,
    begin_chain,
    decode_record,
    head_object,
    list_records,
    read_head,
    read_publications,
)
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.records import KnownObjects
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore


def retire_idle(table: TableStore, *, clock: Clock, data_grace_ms: int, is_holding: bool, latest_ms: int) -> bool:
    """Take the current publication out if nobody asks for it, or what its maker left behind; return whether it did.

    A table that no engine reads would otherwise keep what its last publication needs for ever. Who asks later gets a
    new one. It goes on to hold for a grace period (J4), and by then nobody relies on it.

    Args:
        table: The table.
        clock: For ids.
        data_grace_ms: Of the table.
        is_holding: Whether publications keep a dead data file that would be gone without them.
        latest_ms: What the time is at most, by the store's clock.

    Raises:
        Unavailable: The store did not answer.
    """
    found = read_publications(table)
    now_ms = min(found.store_now_ms, latest_ms)
    head = found.head
    if head is None:
        return bool(found.records) and not found.problem and _begin_chain(table, clock, None)
    pending = [
        record
        for record in found.records
        if record.name is not None and record.name.chain == head.chain and record.name.sequence > head.sequence
    ]
    # Somebody asks for it, and gets it while no other one can be made; or makes the first one just now.
    patience_ms = PENDING_TTL_MS if head.current is None else data_grace_ms
    if any(record.info.modified_ms + patience_ms > now_ms for record in pending):
        return False
    if any(record.name is not None and record.name.sequence > head.sequence + 1 for record in pending):
        return _begin_chain(table, clock, head)  # the head came out of a backup: numbers would come again
    is_idle = head.current is None or head.modified_ms + data_grace_ms + MAX_STORE_GAP_MS <= now_ms
    if not is_idle or not (pending or (is_holding and head.current is not None)):
        return False
    return _replace_head(table, head, head.retired())


def _begin_chain(table: TableStore, clock: Clock, head: Head | None) -> bool:
    """Begin a new chain, of which nothing is a part that was published before."""
    if head is not None:
        return _replace_head(table, head, Head(clock.new_id(), 0, withdrawn=min(0, head.withdrawn)))
    begin_chain(table, clock.new_id())
    return True


def _replace_head(table: TableStore, head: Head, changed: Head) -> bool:
    """Change the head by compare-and-set; return whether it certainly is (P1)."""

    def write(now: Head | None) -> Head:
        if now is None or now.etag != head.etag:
            raise CommitConflict(f"{table.paths.publication_head_key}: another process changed it")
        return changed

    try:
        return head_object(table).update(write).is_new
    except (CommitConflict, CommitOutcomeUnknown):
        return False


def withdraw_publications(table: TableStore, *, clock: Clock) -> None:
    """Take everything out that was published before, at once: nothing of it may be read any more (E5). Idempotent.

    What is published from now on goes on from nothing.

    Raises:
        CorruptLog: The head cannot be understood.
        CommitConflict: Others kept changing it; call again.
        Unavailable: The store did not answer.
    """

    def withdraw(head: Head | None) -> Head:
        if head is None:
            return Head(clock.new_id(), 0).retired(is_withdrawn=True)
        # WARN: E5: not "nothing is current": one may be in the making on this very state, of a log from before.
        is_done = head.withdrawn == head.sequence and not _has_pending(table, head)
        return head if is_done else head.retired(is_withdrawn=True)

    if read_head(table) is not None or list_records(table)[0] or _list_objects(table):
        head_object(table).update(withdraw)


def _has_pending(table: TableStore, head: Head) -> bool:
    names = (record.name for record in list_records(table)[0])
    return any(name is not None and name.chain == head.chain and name.sequence > head.sequence for name in names)


def _list_objects(table: TableStore) -> tuple[ObjectInfo, ...]:
    """Return the objects that publications wrote; what others put beside them is not theirs."""
    listing = list_all(table.store, table.paths.published_prefix)
    return tuple(info for info in listing.objects if publication_id_of(info.key) is not None)


def count_withdrawn(table: TableStore) -> int:
    """Return how many objects of publications that are withdrawn are still there (E5). Raises Unavailable."""
    objects = _list_objects(table)
    if not objects:
        return 0
    # WARN: E5: after the objects: a record is there before the first object of its publication.
    found = read_publications(table, is_whole=True)
    head = found.head
    valid = [
        record
        for record in found.records
        if head is not None
        and record.name is not None
        and record.name.chain == head.chain
        and record.name.sequence > head.withdrawn
    ]
    ids = {record.name.publication_id for record in valid if record.name is not None}
    # What they go on from was published after the withdrawal as well, though its record may be gone by now.
    needed = _find_needed(table, found, valid) or ()
    return sum(publication_id_of(info.key) not in ids and info.key not in needed for info in objects)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """What a sweep deletes."""

    objects: tuple[ObjectInfo, ...]
    records: tuple[Record, ...]


def sweep_publications(table: TableStore, deleter: Deleter, *, data_grace_ms: int) -> Deleted:
    """Delete the objects of publications that are over, then their records (P5). Idempotent.

    Raises:
        Unavailable: The store did not answer.
        IceDBError: What the deleter raises.
    """
    planned = _plan_sweep(table, data_grace_ms=data_grace_ms)
    first = deleter.delete(
        DeleteCandidate(info.key, "publication", "no publication that may be read refers to it", ("publication",),
               size_bytes=info.size_bytes)
        for info in planned.objects
    )  # fmt: skip
    kept = {publication_id_of(each.key) for each in first.failed}
    second = deleter.delete(
        DeleteCandidate(record.info.key, "publication", "it is over, and nothing of it is left", ("publication",))
        for record in planned.records
        if record.name is None or record.name.publication_id not in kept
    )
    return Deleted(first.keys | second.keys, (*first.failed, *second.failed))


def _plan_sweep(table: TableStore, *, data_grace_ms: int) -> _Sweep:
    # WARN: P5: objects, records, head, in this order. A record is there before the first object of its publication, so
    # an object without a record is one of which the record was swept. The other way round: a record is written after
    # it was looked for, and its objects are found.
    objects = _list_objects(table)
    found = read_publications(table, is_whole=True)
    if found.problem or (found.head is None and found.records):
        return _Sweep((), ())  # unknown means keep
    ends = found.find_ends(data_grace_ms=data_grace_ms)
    lasting = [record for record, end_ms in ends if end_ms is None or end_ms > found.store_now_ms]
    over = [record for record, end_ms in ends if end_ms is not None and end_ms <= found.store_now_ms]
    needed = _find_needed(table, found, lasting)
    if needed is None:
        return _Sweep((), ())
    ids = {record.name.publication_id for record in lasting if record.name is not None}
    candidates = (info for info in objects if publication_id_of(info.key) not in ids and info.key not in needed)
    return _Sweep(tuple(candidates), tuple(over))


def _find_needed(table: TableStore, found: Publications, lasting: Sequence[Record]) -> Collection[str] | None:
    """Return the earlier objects that publications which are not over may refer to; ``None``: nobody knows.

    WARN: P5: of all of them. Along a chain the oldest one's record names whatever later ones need of those before it,
    but nobody knows which record that is: one that lost stays when its rival's was deleted, one whose write was under
    way for long lands late.
    """
    needed = (
        set(found.head.current.objects) if found.head is not None and found.head.current is not None else set[str]()
    )

    known = KnownObjects(partial(decode_record, table.paths))
    for named in known.read(table.store, [each.info for each in lasting]):
        if named is None:
            return None
        needed |= named
    return needed
