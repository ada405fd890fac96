"""What earlier orphan sweeps saw: ``_icedb/orphans.json`` (rule J5).

An entry is a fact: at ``first_seen_ms`` by the store's clock a log did not name this object, with this ETag, and it was
old enough; and no sweep has found otherwise since. A sweep that finds otherwise takes the entry out. The record is
replaced by compare-and-set, never deleted, and no two states of it are equal (each has a token of its own), so that a
write which lands late finds another ETag. Nobody else writes it. One that cannot be understood counts as empty:
orphans are then seen for the first time, and wait once more (unknown means keep).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from icedb_log.clock import Clock
from icedb_log.errors import CommitOutcomeUnknown, NotFound, PreconditionFailed
from icedb_log.keys import TablePaths
from icedb_log.storage.object_store import ObjectStore

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
class OrphanRecord:
    """The record as it was read.

    Attributes:
        sightings: By key.
        etag: Of the record itself; ``None`` if there is none yet.
        problem: Why what is there cannot be understood; empty if it can.
    """

    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    etag: str | None = None
    problem: str = ""


def read_orphan_record(store: ObjectStore, paths: TablePaths) -> OrphanRecord:
    """Read what earlier sweeps saw.

    Raises:
        Unavailable: The store did not answer.
    """
    try:
        stored = store.get(paths.orphan_record_key)
    except NotFound:
        return OrphanRecord()
    try:
        value: dict[str, Any] = orjson.loads(stored.body)
        if value["v"] != RECORD_VERSION:
            raise ValueError(f"version {value['v']}")
        sightings = {
            f"{paths.data_prefix}{name}": Sighting(_text(etag), _number(first_seen_ms), bool(is_held))
            for name, (etag, first_seen_ms, is_held) in value["seen"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{paths.orphan_record_key} is no record of orphans ({error}); it is begun anew"
        return OrphanRecord(etag=stored.info.etag, problem=problem)
    return OrphanRecord(sightings, stored.info.etag)


def write_orphan_record(
    store: ObjectStore, paths: TablePaths, sightings: Mapping[str, Sighting], *, replaces: str | None, clock: Clock
) -> bool:
    """Replace the record that was read, if nobody else has; return whether it is written for certain.

    Not repeated: a sweep that is refused, or gets no answer, changes nothing and leaves the work to the next one.

    Args:
        store: The object store.
        paths: Keys of the table.
        sightings: By key.
        replaces: ETag of the record that was read; ``None`` if there was none.
        clock: Makes the token.

    Raises:
        Unavailable: The store did not answer.
    """
    seen = {
        key.removeprefix(paths.data_prefix): (each.etag, each.first_seen_ms, int(each.is_held))
        for key, each in sightings.items()
    }
    body = orjson.dumps({"v": RECORD_VERSION, "token": clock.new_id(), "seen": seen})
    key = paths.orphan_record_key
    try:
        if replaces is None:
            store.put_if_absent(key, body)
        else:
            store.put_if_match(key, body, etag=replaces)
    except (PreconditionFailed, CommitOutcomeUnknown):
        return _is_mine(store, key, body)  # W2: perhaps refused by its own first try; only reading tells
    return True


def _is_mine(store: ObjectStore, key: str, body: bytes) -> bool:
    try:
        return store.get(key).body == body
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
