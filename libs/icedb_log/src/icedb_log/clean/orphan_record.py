"""What earlier orphan sweeps saw, and which commits were found lost: ``_icedb/orphans.json`` (rules J5, F5).

An entry is a fact: at ``first_seen_ms`` by the store's clock a log did not name this object, with this ETag, and it was
old enough; and no sweep has found otherwise since. A sweep that finds otherwise takes the entry out. The record is
replaced by compare-and-set, never deleted, and no two states of it are equal (each has a token of its own), so that a
write which lands late finds another ETag. One that cannot be understood counts as empty: orphans are then seen for the
first time, and wait once more (unknown means keep).

A lost commit is written down as soon as a sweep or a vacuum finds it: what proves it (F5) does not last, because the
horizon goes on. It stays until its log file is back, a rebuild has made the log anew, or a person forces the deletion.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, NotFound, Unavailable
from icedb_log.keys import parse_log_key
from icedb_log.log.lost_commits import drop_known, find_lost
from icedb_log.model import LogView
from icedb_log.store.records import replace_record
from icedb_log.store.table_store import TableStore

RECORD_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Sighting:
    """That an object was an orphan.

    Attributes:
        etag: Of the object.
        first_seen_ms: The store's clock when the log was listed that did not name it.
        is_held: The share guard has refused to delete it; from then on only force does.
    """

    etag: str
    first_seen_ms: int
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class LostCommit:
    """That a commit was lost (F5).

    Attributes:
        found_ms: The store's clock when it was found.
        is_given_up: A person has forced the deletion of orphans since: it holds nothing any more, and is remembered
            for as long as it would be found again.
    """

    found_ms: int
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class OrphanRecord:
    """The record as it was read: sightings by key, lost commits by the name of their log file.

    Without an ``etag`` there is none yet; ``problem`` is why what is there cannot be understood, empty if it can.
    """

    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    etag: str | None = None
    problem: str = ""
    lost: Mapping[str, LostCommit] = field(default_factory=dict)

    @property
    def open_lost(self) -> tuple[str, ...]:
        """Lost commits of which nobody has decided anything, ascending."""
        return tuple(sorted(name for name, each in self.lost.items() if not each.is_given_up))

    @property
    def lost_ms(self) -> int:
        """The store's clock when the last of them was found; 0 if there is none."""
        return max((each.found_ms for each in self.lost.values() if not each.is_given_up), default=0)

    def with_lost(self, found: Collection[str], view: LogView) -> dict[str, LostCommit]:
        """Return the lost commits as of a log: those that were known and have not come back, and those found now.

        ``found`` is what :func:`~icedb_log.log.lost_commits.find_lost` says of that log.
        """
        missing = drop_known(self.lost, view)
        lost = {name: self.lost[name] for name in missing if name in found or not self.lost[name].is_given_up}
        return {name: LostCommit(view.store_now_ms) for name in found} | lost


def read_orphan_record(table: TableStore) -> OrphanRecord:
    """Read what earlier sweeps saw.

    Raises:
        Unavailable: The store did not answer.
    """
    try:
        stored = table.store.get(table.paths.orphan_record_key)
    except NotFound:
        return OrphanRecord()
    try:
        value: dict[str, Any] = orjson.loads(stored.body)
        if value["v"] != RECORD_VERSION:
            raise ValueError(f"version {value['v']}")
        sightings = {
            f"{table.paths.data_prefix}{name}": Sighting(_text(etag), _number(first_seen_ms), bool(is_held))
            for name, (etag, first_seen_ms, is_held) in value["seen"].items()
        }
        lost = {
            name: LostCommit(_number(found_ms), bool(is_given_up))
            for name, (found_ms, is_given_up) in value.get("lost", {}).items()
            if parse_log_key(f"{name}.jsonl")
        }
    except (CorruptLog, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{table.paths.orphan_record_key} is no record of orphans ({error}); it is begun anew"
        return OrphanRecord(etag=stored.info.etag, problem=problem)
    return OrphanRecord(sightings, stored.info.etag, lost=lost)


def note_lost(table: TableStore, *, landed: Iterable[str], view: LogView, clock: Clock) -> tuple[str, ...]:
    """Write down which commits are lost, before the horizon hides it (F5); return those of which nobody has decided.

    Costs nothing while none is.

    ``landed`` is what the fences said before the log was read.

    Raises:
        Unavailable: The store did not answer, or a sweep has just written the record: run again.
    """
    found = find_lost(landed, view)
    if not found:
        return ()
    record = read_orphan_record(table)
    lost = record.with_lost(found, view)
    if lost != record.lost and not write_orphan_record(
        table, record.sightings, replaces=record.etag, clock=clock, lost=lost
    ):
        raise Unavailable(
            f"table {table.name}: {len(found)} commits are lost (the first is {found[0]}), and somebody else wrote "
            f"{table.paths.orphan_record_key} just now; nothing was deleted, the next run writes it down"
        )
    return replace(record, lost=lost).open_lost


def write_orphan_record(
    table: TableStore,
    sightings: Mapping[str, Sighting],
    *,
    replaces: str | None,
    clock: Clock,
    lost: Mapping[str, LostCommit],
) -> bool:
    """Replace the record that was read, if nobody else has; return whether it is written for certain.

    Not repeated: a sweep that is refused, or gets no answer, changes nothing and leaves the work to the next one.

    ``replaces`` is the ETag of the record that was read; ``None`` if there was none.

    Raises:
        Unavailable: The store did not answer.
    """
    seen = {
        key.removeprefix(table.paths.data_prefix): (each.etag, each.first_seen_ms, int(each.is_held))
        for key, each in sightings.items()
    }
    fields: dict[str, Any] = {"v": RECORD_VERSION, "token": clock.new_id(), "seen": seen}
    if lost:
        fields["lost"] = {name: (each.found_ms, int(each.is_given_up)) for name, each in lost.items()}
    body = orjson.dumps(fields)
    key = table.paths.orphan_record_key
    if replace_record(table.store, key, body, etag=replaces):
        return True
    try:
        return table.store.get(key).body == body  # W2: perhaps refused by its own first try; only reading tells
    except NotFound:
        return False


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("an ETag is no text")
    return value


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError("a time is no number")
    return value
