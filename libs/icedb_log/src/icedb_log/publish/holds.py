"""What publications hold, and which of them are over (P3, P5).

All of it follows from one listing of their records and one look at the head. A publication holds, as a lease does,
every data file that died later than the time in its record's name: while it may become the current one, while it is,
and for a grace period of data files after it has left, for those who read then what they were shown before.

When a publication has left nobody writes down. But who writes the record of number n + 2 has read a head of number
n + 1, at which n was not the current one any more; and so has whoever wrote the head that is there. The earliest of
these times is late enough.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from icedb_log.clean.guards import EVERY_STATE_MS, Hold
from icedb_log.errors import CorruptLog
from icedb_log.keys import PublicationName, parse_publication_key
from icedb_log.publish.head import Head, read_head
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore

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
            # WARN: P3: of a number two higher, not one: that one was written while this one was the current one.
            at = bisect_left(sequences, record.name.sequence + NUMBERS_LATER) if is_of_chain else 0
            left_ms = min(earliest[at], head.modified_ms) if at < len(earliest) else head.modified_ms
            return left_ms + data_grace_ms + MAX_STORE_GAP_MS

        return [(record, find_end(record)) for record in self.records]

    def find_holds(self, *, data_grace_ms: int, now_ms: int) -> tuple[Hold, ...]:
        """Return what publications hold (P3)."""
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
    listing = list_all(table.store, table.paths.publications_prefix)
    return tuple(Record(parse_publication_key(info.key), info) for info in listing.objects), listing.store_now_ms


def read_publications(table: TableStore, *, is_whole: bool = False) -> Publications:
    """Return the publications of a table. One listing, and one GET.

    Without records the head is read only if ``is_whole``: it holds nothing then.

    Raises:
        Unavailable: The store did not answer.
    """
    records, store_now_ms = list_records(table)
    if not records and not is_whole:
        return Publications(None, (), store_now_ms)
    try:
        return Publications(read_head(table), records, store_now_ms)
    except CorruptLog as error:
        return Publications(None, records, store_now_ms, str(error))
