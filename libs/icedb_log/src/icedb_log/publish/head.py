"""The head of a table's chain of publications, the record of each, and what they hold (P1, P2, J4, P5).

``_icedb/iceberg/head.json`` is the one object that changes, by compare-and-set: ``{"format": 1, "chain": <id>,
"sequence": <number of this state>, "withdrawn": <sequence>, "current": null | {"id", "since", "as_of", "metadata",
"logs", "tags", "tags_end", "objects"}}``. Each state has one more than the one before, so that no content, hence no
ETag, ever comes back, and a state with a current publication has that one's sequence. ``withdrawn``: nothing with that
sequence, or a lower one, may be read any more (E5).

The record of one publication is a hold (:mod:`icedb_log.holds.stored_holds`), named
``<chain>.<sequence>.<since>``, written before anything else of it, never changed, and deleted after everything else of
it. It lists the objects of the publication that it goes on from. All that decides stands in its name, so that a listing
is enough.

Objects are named without the common prefix of their keys, :attr:`~icedb_log.keys.TablePaths.published_prefix`.

What publications hold, and which of them are over, follows from one listing of the records and one look at the head. A
publication holds, as a lease does, every data file that died later than the time in its record's name: while it may
become the current one, while it is, and for a grace period of data files after it has left, for those who read then
what they were shown before. The time at which a publication has left is not recorded. But the writer of record n + 2
has read a head of number n + 1, at which n was not the current one any more, and so has the writer of the present head.
The earliest of these times is late enough.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

import orjson

from icedb_log.errors import CorruptLog
from icedb_log.holds.guards import EVERY_STATE_MS, Hold
from icedb_log.holds.stored_holds import ListedHolds, encode_hold
from icedb_log.keys import PublicationName, TablePaths, parse_publication_key
from icedb_log.log.fold import LONGEST_COMMIT_MS
from icedb_log.model import Widening
from icedb_log.publish.model import Publication
from icedb_log.store.object_store import ObjectInfo, StoredObject, list_all
from icedb_log.store.records import CasObject
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Head:
    """One state of a chain's head.

    Attributes:
        chain: Id of the chain.
        sequence: Number of this state.
        current: The publication that engines are shown; ``None``: there is none.
        withdrawn: What has this sequence or a lower one may not be read any more.
        etag: Of the object.
        modified_ms: LastModified of the object.
    """

    chain: str
    sequence: int
    current: Publication | None = None
    withdrawn: int = -1
    etag: str = ""
    modified_ms: int = 0

    def retired(self, *, is_withdrawn: bool = False) -> "Head":
        """Return a state that shows no publication: all that began before it lose their compare-and-set.

        ``is_withdrawn``: nothing that was published before may be read any more.
        """
        sequence = self.sequence + 1
        withdrawn = sequence if is_withdrawn else self.withdrawn
        return replace(self, sequence=sequence, current=None, withdrawn=withdrawn)


def encode_head(paths: TablePaths, head: Head) -> bytes:
    """Return the bytes of a head."""
    current = None if head.current is None else _encode_current(paths, head.current)
    fields = {
        "format": _FORMAT,
        "chain": head.chain,
        "sequence": head.sequence,
        "withdrawn": head.withdrawn,
        "current": current,
    }
    return orjson.dumps(fields)


def _encode_current(paths: TablePaths, current: Publication) -> dict[str, Any]:
    return {
        "id": current.publication_id,
        "since": current.since_ms,
        "as_of": current.as_of_ms,
        "metadata": _shorten(paths, current.metadata_key),
        "logs": sorted(current.log_names),
        "tags": current.tags_digest,
        "tags_end": current.tags_end_ms,
        "objects": sorted(_shorten(paths, key) for key in current.objects),
    }


def _shorten(paths: TablePaths, key: str) -> str:
    return key.removeprefix(paths.published_prefix)


def decode_head(paths: TablePaths, stored: StoredObject) -> Head:
    """Return what a head says. Raises CorruptLog."""
    try:
        value = orjson.loads(stored.body)
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']}")
        head = Head(
            chain=str(value["chain"]),
            sequence=int(value["sequence"]),
            withdrawn=int(value["withdrawn"]),
            etag=stored.info.etag,
            modified_ms=stored.info.modified_ms,
        )
        current = value["current"]
        return head if current is None else replace(head, current=_decode_current(paths, head, current))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptLog(
            f"{stored.info.key}: not understood ({error}); upgrade if a newer release wrote it, else delete "
            f"{paths.iceberg_prefix} whole: nothing of the table is lost, and engines begin with a new chain"
        ) from error


def _decode_current(paths: TablePaths, head: Head, value: Mapping[str, Any]) -> Publication:
    return Publication(
        publication_id=str(value["id"]),
        chain=head.chain,
        sequence=head.sequence,
        metadata_key=paths.published_prefix + value["metadata"],
        since_ms=int(value["since"]),
        as_of_ms=int(value["as_of"]),
        objects=tuple(paths.published_prefix + name for name in value["objects"]),
        log_names=frozenset(value["logs"]),
        tags_digest=str(value["tags"]),
        tags_end_ms=None if value.get("tags_end") is None else int(value["tags_end"]),
        modified_ms=head.modified_ms,
    )


def read_head(table: TableStore) -> Head | None:
    """Read the head of a table's chain; ``None``: there is none. One request.

    Raises:
        CorruptLog: It cannot be understood.
        Unavailable: The store did not answer.
    """
    return head_object(table).read()


def head_object(table: TableStore) -> CasObject[Head]:
    """Return the head of a table's chain, to be read and changed."""
    paths = table.paths
    return CasObject(table.store, paths.publication_head_key, partial(decode_head, paths), partial(encode_head, paths))


def begin_chain(table: TableStore, chain: str) -> None:
    """Put the head of a chain of its own where there is none; a publisher that is refused reads the other one (P1)."""
    head_object(table).update(lambda found: found or Head(chain, 0), is_likely_new=True)


def read_publication(table: TableStore) -> Publication | None:
    """Return the publication that engines are shown; ``None``: there is none. Raises as :func:`read_head`."""
    head = read_head(table)
    return None if head is None else head.current


def find_narrow_before(head: Head | None, widened: Mapping[str, Widening]) -> int:
    """Return before when data files were made that may keep a table from being published, unix ms; 0: none does. Pure.

    A data file that is older than a column's wider type has the narrow one, which engines would read wrongly, or lacks
    the column; only its footer tells, and only publishers read it. A publication that shows the wider type proves of
    all older files that they are fit. This is advice for merges and people: a publisher goes by footers alone.

    Args:
        head: Of the table; ``None``: nobody asked for it.
        widened: Columns that became wider.
    """
    since_ms = max((widening.since_ms for widening in widened.values()), default=0)
    current = None if head is None else head.current
    # R3: a commit may land so much later than its time: until then a publication may show the state before it.
    is_shown = current is not None and current.as_of_ms >= since_ms + LONGEST_COMMIT_MS
    return 0 if head is None or is_shown else since_ms


def encode_record(paths: TablePaths, *, since_ms: int, owner: str, objects: Collection[str]) -> bytes:
    """Return the bytes of a publication's record: who makes it, and which earlier objects it may refer to."""
    names = sorted(_shorten(paths, key) for key in objects)
    return encode_hold({"state": "active", "at": since_ms, "ttl_ms": None, "by": owner}, orjson.dumps(names))


def decode_record(paths: TablePaths, stored: StoredObject) -> frozenset[str] | None:
    """Return the keys of the earlier objects that a publication may refer to; ``None``: it cannot be understood."""
    try:
        names = orjson.loads(stored.body.partition(b"\n")[2])
        return frozenset(paths.published_prefix + name for name in names)
    except (ValueError, TypeError):
        return None


NUMBERS_LATER: Final = 2
"""Whoever writes a record of so many numbers later has read a head of which this one is not the current one."""
_BUNDLES: Final = 16
"""Records of so many parts of a grace period are one hold each: a table may be published every few seconds."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a publication as a listing names it; ``name`` is ``None`` if it is not understood."""

    name: PublicationName | None
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class Publications:
    """The publications of a table.

    Attributes:
        head: Of their chain; ``None``: there is none, or it cannot be understood.
        records: Of those of which nothing was deleted yet, of all chains.
        store_now_ms: The store's clock before they were listed.
        problem: Why the head cannot be understood; empty: it can be, or there is none.
    """

    head: Head | None
    records: tuple[Record, ...]
    store_now_ms: int
    problem: str = ""

    def find_ends(self, *, data_grace_ms: int) -> list[tuple[Record, int | None]]:
        """Return until when each publication holds, by the store's clock; ``None``: nobody knows yet."""
        head = self.head
        if head is None:
            return [(record, None) for record in self.records]
        numbered = sorted(
            (record.name.sequence, record.info.modified_ms)
            for record in self.records
            if record.name is not None and record.name.chain == head.chain
        )
        sequences = [sequence for sequence, _ in numbered]
        # The earliest time at which one of this number or a later one was written.
        earliest = list(accumulate((time_ms for _, time_ms in reversed(numbered)), min))[::-1]

        def find_end(record: Record) -> int | None:
            if record.name is None:
                return None  # unknown means keep
            is_of_chain = record.name.chain == head.chain
            if record.name.sequence <= head.withdrawn if is_of_chain else head.withdrawn >= 0:
                return 0  # E5: no grace
            if is_of_chain and record.name.sequence == head.sequence and head.current is not None:
                # P1: two of one number were tried at once: the other one has lost, and nobody was shown it.
                return None if record.name.publication_id == head.current.publication_id else 0
            if is_of_chain and record.name.sequence > head.sequence:
                return None  # P1: it may become the current one
            # WARN: J4: of a number two higher, not one: that one was written while this one was the current one.
            at = bisect_left(sequences, record.name.sequence + NUMBERS_LATER) if is_of_chain else 0
            left_ms = min(earliest[at], head.modified_ms) if at < len(earliest) else head.modified_ms
            return left_ms + data_grace_ms + MAX_STORE_GAP_MS

        return [(record, find_end(record)) for record in self.records]

    def find_holds(self, *, data_grace_ms: int, now_ms: int) -> tuple[Hold, ...]:
        """Return what publications hold (J4)."""
        if self.records and self.head is None:
            told = self.problem or "the head of their chain is not there"
            return (Hold("publication", "head", since_ms=EVERY_STATE_MS, told=told),)
        ends = self.find_ends(data_grace_ms=data_grace_ms)
        lasting = [(record, end_ms) for record, end_ms in ends if end_ms is None or end_ms > now_ms]
        return tuple(_bundle(lasting, part_ms=max(1, data_grace_ms // _BUNDLES)))


def _bundle(lasting: Iterable[tuple[Record, int | None]], *, part_ms: int) -> list[Hold]:
    """Return holds of records, those that end about the same time as one: as long, and as much, as each of them."""
    found: dict[int | None, Hold] = {}
    for record, end_ms in lasting:
        since_ms = EVERY_STATE_MS if record.name is None else record.name.since_ms
        name = record.info.key.rpartition("/")[2] if record.name is None else record.name.publication_id
        part = None if end_ms is None else end_ms // part_ms
        known = found.get(part)
        if known is not None:
            since_ms = min(since_ms, known.since_ms or 0)
        until_ms = end_ms if known is None or end_ms is None else max(end_ms, known.until_ms or 0)
        found[part] = Hold("publication", name, until_ms, since_ms=since_ms)
    return list(found.values())


def list_records(table: TableStore) -> tuple[tuple[Record, ...], int]:
    """Return the records of all publications, and the store's clock before. One listing. Raises Unavailable."""
    listing = list_all(table.store, table.paths.holds_of("publication"))
    return _as_records(listing.objects), listing.store_now_ms


def _as_records(infos: Iterable[ObjectInfo]) -> tuple[Record, ...]:
    return tuple(Record(parse_publication_key(info.key), info) for info in infos)


def read_publications(table: TableStore, *, is_whole: bool = False, listed: ListedHolds | None = None) -> Publications:
    """Return the publications of a table. One listing, unless holds were ``listed`` just now, and one GET.

    Without records the head is read only if ``is_whole``: it holds nothing then.

    Raises:
        Unavailable: The store did not answer.
    """
    if listed is None:
        records, store_now_ms = list_records(table)
    else:
        records, store_now_ms = _as_records(listed.publications), listed.store_now_ms
    if not records and not is_whole:
        return Publications(None, (), store_now_ms)
    try:
        return Publications(read_head(table), records, store_now_ms)
    except CorruptLog as error:
        return Publications(None, records, store_now_ms, str(error))
