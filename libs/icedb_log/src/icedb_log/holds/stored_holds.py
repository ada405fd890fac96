"""Holds: objects that keep dead files of a table from deletion, for a time or until they are ended (rule J4).

``_icedb/holds/<owner>.<name>.<id>.jsonl``; a lease has no name. The first line says what the hold is
(:class:`StoredHold`). Behind it stands its list, in the words of its owner: of a tag a snapshot as a log file, of a
publication the names of earlier objects, of a lease nothing. A hold that lists data files keeps these, another one what
dies after its time. One that cannot be understood keeps everything: a lease for a day, a tag until it is ended.

States, each by compare-and-set, none ever comes back::

    pending ──▶ active ──▶ ended      a tag; it may be ended while it is pending
                active ──▶ active     a lease that is renewed; its release deletes it
                active                a publication: the head of its chain says when it ends (icedb_log.publish.head)

Times run from LastModified by the store's clock, so nobody else's clock matters. A state names the end of the one that
it replaced (``until``): one that landed later than that counts for nothing, because a janitor may have looked between.

Order of making: the object; the log; the proof (:func:`require_certain`). A hold whose maker died expires.
"""

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import Field, TypeAdapter

from icedb_log.clock import format_ms
from icedb_log.errors import BelowHorizon, CommitConflict, CorruptLog, NotFound, UnsupportedFormat
from icedb_log.holds.guards import (
    LOG_GUARDS,
    Hold,
    find_certain_ms,
    find_data_deaths,
    find_log_deaths,
    may_be_going,
)
from icedb_log.keys import HoldName, HoldOwner, parse_hold_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import read_horizon_ms
from icedb_log.model import LogFile, LogView
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject, list_all
from icedb_log.store.records import KnownObjects, create_claim, replace_claim
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS

HoldState = Literal["pending", "active", "ended"]
HoldStatus = Literal["pending", "active", "ended", "expired", "abandoned", "late", "unreadable"]
"""``expired``: its time is over; ``abandoned``: it stayed pending for too long; ``late``: its state landed after the
end of the one before, so that what it held may be gone; ``unreadable``: it cannot be understood."""

MAX_LEASE_TTL_MS: Final = DAY_MS

_FORMAT: Final = 1
_MALFORMED: Final = (CorruptLog, UnsupportedFormat, ValueError, KeyError, TypeError)
_LINE_BYTES: Final = 8 * 1024
"""The first line of a hold is shorter."""


@dataclass(frozen=True, slots=True)
class StoredHold:
    """What the first line of a hold and its object say.

    Attributes:
        owner: Whose it is; ``None``: its key is that of no hold.
        name: What its owner calls it; of a key that is none its last component.
        modified_ms: LastModified of its object: its times run from there.
        state: As it was written; ``None``: it cannot be understood.
        at_ms: The time that is held, unix ms.
        ttl_ms: How long it lasts; ``None``: until it is ended.
        until_ms: When the state that this one replaced would have ended.
        holder: Who made it, for people.
        note: Why, for people.
        is_whole: Whether it says which data files it holds; otherwise it holds what dies after its time.
        row_count: Rows in its data files; ``None``: not all files say.
        last_commit_ms: Time of the newest commit that is part of it; 0: none.
        paths: The data files that it lists; ``None``: it lists none, or was read without them, or they are damaged.
    """

    owner: HoldOwner | None
    name: str
    hold_id: str
    key: str
    etag: str
    modified_ms: int
    state: HoldState | None = None
    at_ms: Annotated[int, Field(alias="at")] = 0
    ttl_ms: int | None = None
    until_ms: Annotated[int | None, Field(alias="until")] = None
    holder: Annotated[str, Field(alias="by")] = ""
    note: str = ""
    is_whole: Annotated[bool, Field(alias="whole", strict=True)] = False
    file_count: Annotated[int, Field(alias="files")] = 0
    size_bytes: Annotated[int, Field(alias="bytes")] = 0
    row_count: Annotated[int | None, Field(alias="rows")] = None
    last_commit_ms: Annotated[int, Field(alias="last_commit")] = 0
    paths: frozenset[str] | None = None

    @property
    def ends_ms(self) -> int | None:
        """When it ends, or ended, by the store's clock; ``None``: it has no end of its own."""
        if self.state is None:
            return self.modified_ms + MAX_LEASE_TTL_MS if self.owner == "lease" else None
        if self.state == "ended":
            return self.modified_ms
        if self.ttl_ms is None:
            return None
        # WARN: J4: a renewal ends nothing earlier. The answer of one that asks for less may get lost, and of two
        # holders each may renew: both rely on the latest end that they were told.
        promised_ms = 0 if self.is_whole or self.until_ms is None else self.until_ms
        return max(self.modified_ms + self.ttl_ms, promised_ms)

    @property
    def is_late(self) -> bool:
        """Whether this state landed when the one before had ended: what it holds now, it did not hold all the time."""
        return self.state == "active" and self.until_ms is not None and self.modified_ms >= self.until_ms

    def status(self, now_ms: int) -> HoldStatus:
        """Return how it stands at a time of the store's clock."""
        if self.state is None:
            return "unreadable"
        if self.state == "ended":
            return "ended"
        if self.ends_ms is not None and self.ends_ms <= now_ms:
            return "abandoned" if self.state == "pending" else "expired"
        return "late" if self.is_late else self.state

    def held_until_ms(self, data_grace_ms: int) -> int | None:
        """Return from when on a janitor counts it as ended.

        WARN: not at once. Two servers of one store may differ: a janitor hears from one that a hold has ended, while
        another one takes its next state and says that it came in time. What a tag names may be read without any other
        hold, and a reader may have begun just before it ended.
        """
        if self.ends_ms is None:
            return None
        grace_ms = 0 if self.owner == "lease" or self.state == "pending" else data_grace_ms
        return self.ends_ms + grace_ms + MAX_STORE_GAP_MS

    def keeps(self, *, data_grace_ms: int) -> Hold:
        """Return what it keeps.

        WARN: not what died since its time. What its holder saw alive may be dated back: by a committer with a slow
        clock, and by a server of the store that lags behind the one that told the holder the time.
        """
        until_ms = self.held_until_ms(data_grace_ms)
        if self.paths is not None:
            return Hold("tag", self.name, until_ms, files=self.paths)
        since_ms = self.at_ms - MAX_STORE_GAP_MS
        if self.owner != "lease":
            return Hold("tag", self.name, until_ms, since_ms=since_ms)
        told = f"{self.hold_id} ({self.holder})" if self.holder else self.hold_id
        return Hold("lease", self.hold_id, until_ms, since_ms=since_ms, told=told)


# The object

_HOLD: Final = TypeAdapter(StoredHold)


def encode_hold(fields: Mapping[str, Any], listed: bytes = b"") -> bytes:
    """Return the bytes of a hold: its fields by their wire names, ``state``, ``at`` and ``ttl_ms`` at least.

    A ``token`` among them that is fresh makes sure that no content, hence no ETag, comes back.
    """
    return orjson.dumps({"format": _FORMAT, **fields}) + b"\n" + listed


def decode_hold(stored: StoredObject) -> StoredHold:
    """Return what the first line of a hold says; its state is ``None`` if that cannot be understood."""
    info = stored.info
    name = parse_hold_key(info.key) or HoldName(None, info.key.rpartition("/")[2], "")
    place = StoredHold(name.owner, name.name, name.hold_id, info.key, info.etag, info.modified_ms)
    if name.owner is not None:
        with contextlib.suppress(*_MALFORMED):
            return _validate(_split(stored.body)[0], place)
    return place


def _split(body: bytes) -> tuple[Any, bytes]:
    first, _, listed = body.partition(b"\n")
    return orjson.loads(first), listed


def _validate(said: Any, place: StoredHold) -> StoredHold:
    if said["format"] != _FORMAT or said["state"] is None or not said.keys() >= {"at", "ttl_ms"}:
        raise ValueError("not a hold of this format")
    if said["ttl_ms"] is None and place.owner == "lease":
        raise ValueError("a lease without an end")
    fixed = ("owner", "name", "hold_id", "key", "etag", "modified_ms", "paths")
    return _HOLD.validate_python({**said, **{each: getattr(place, each) for each in fixed}})


def decode_snapshot(hold: StoredHold, body: bytes, *, is_compact: bool = False) -> LogFile:
    """Return the snapshot that a tag lists. Raises CorruptLog, UnsupportedFormat."""
    log = decode_log_file(hold.key, body.partition(b"\n")[2], is_compact=is_compact)
    if len(log.markers) != hold.file_count:
        raise CorruptLog(f"{hold.key}: lists {len(log.markers)} data files, and says that they are {hold.file_count}")
    return log


def _decode_whole(stored: StoredObject) -> StoredHold:
    """Return a hold with the data files that it lists."""
    hold = decode_hold(stored)
    if not hold.is_whole:
        return hold
    if not hold.file_count:
        return replace(hold, paths=frozenset())
    with contextlib.suppress(*_MALFORMED):
        return replace(hold, paths=frozenset(m.path for m in decode_snapshot(hold, stored.body).markers))
    return hold


# Reading


@dataclass(frozen=True, slots=True)
class ListedHolds:
    """The holds of a table, ended ones too, by owner, name and age.

    Attributes:
        holds: Leases, tags, and what by its key is no hold.
        publications: Objects of the holds of publications: their keys say all that decides.
        store_now_ms: The time that they are judged by, of the store's clock before the listing.
    """

    holds: tuple[StoredHold, ...]
    publications: tuple[ObjectInfo, ...]
    store_now_ms: int

    def lasting(self, *, data_grace_ms: int) -> tuple[StoredHold, ...]:
        """Return the holds that a janitor has to take for lasting."""
        ends = ((hold, hold.held_until_ms(data_grace_ms)) for hold in self.holds)
        return tuple(hold for hold, until_ms in ends if until_ms is None or until_ms > self.store_now_ms)


class HoldReader:
    """Reads the holds of one table; keeps what it read. Thread-safe."""

    def __init__(self) -> None:
        self._leases = KnownObjects(_decode_whole)
        self._others = KnownObjects(_decode_whole, threads=1)  # each may name a million files

    def read(self, table: TableStore, *, owner: HoldOwner | None = None, latest_ms: int | None = None) -> ListedHolds:
        """Return the holds of a table, or of one owner. One listing, and one GET for each that is new or has changed.

        Publications cost no GET. It is ``latest_ms`` at most, whatever the store's clock says now (J1).

        Raises:
            Unavailable: The store did not answer.
        """
        listing = list_all(table.store, table.paths.holds_prefix if owner is None else table.paths.holds_of(owner))
        now_ms = listing.store_now_ms if latest_ms is None else min(listing.store_now_ms, latest_ms)
        found: dict[HoldOwner | None, list[ObjectInfo]] = defaultdict(list)
        for info in listing.objects:
            name = parse_hold_key(info.key)
            found[None if name is None else name.owner].append(info)
        # No lease lasts longer, and one that has ended is not renewed.
        least_ms = now_ms - MAX_LEASE_TTL_MS - MAX_STORE_GAP_MS
        leases = [info for info in found["lease"] if info.modified_ms > least_ms]
        holds = self._leases.read(table.store, leases) if owner != "tag" else []
        holds += self._others.read(table.store, [*found["tag"], *found[None]]) if owner != "lease" else []
        return ListedHolds(tuple(holds), tuple(found["publication"]), now_ms)


def list_holds(table: TableStore, *, owner: HoldOwner, name: str = "") -> ListedHolds:
    """List the holds of an owner, without what they list. Costs one listing and one small ranged GET for each.

    Raises:
        Unavailable: The store did not answer.
    """
    listing = list_all(table.store, table.paths.holds_of(owner, name))
    holds: list[StoredHold] = []
    for info in listing.objects:
        with contextlib.suppress(NotFound):
            holds.append(decode_hold(table.store.get_range(info.key, start=0, length=_LINE_BYTES)))
    return ListedHolds(tuple(holds), (), listing.store_now_ms)


def find_ended_holds(table: TableStore, *, data_grace_ms: int) -> tuple[str, ...]:
    """Return the keys of leases and tags that hold nothing any more. They never hold anything again.

    Raises:
        Unavailable: The store did not answer.
    """
    ended: list[str] = []
    for owner in ("lease", "tag"):
        listed = list_holds(table, owner=owner)
        lasting = {hold.key for hold in listed.lasting(data_grace_ms=data_grace_ms)}
        ended += (hold.key for hold in listed.holds if hold.key not in lasting)
    return tuple(ended)


# Making and changing


def put_hold(store: ObjectStore, key: str, body: bytes) -> StoredHold:
    """Write a hold for the first time. Its key is used once, so that whatever stands there is this one (W2).

    Raises:
        CommitConflict: Somebody ended it meanwhile.
        CommitOutcomeUnknown: The store did not confirm it.
        Unavailable: The store did not take it.
    """
    ended = "this hold was ended while it was made; try again"
    found = create_claim(store, key, body, ended=ended)
    if found.body != body:
        # WARN: J4: not with the ETag of whatever stands there. Somebody ends a pending tag just after it was written;
        # it holds nothing any more, files go, and the tag would become active over its own end.
        raise CommitConflict(f"{key}: {ended}")
    return decode_hold(found)


def replace_hold(store: ObjectStore, hold: StoredHold, body: bytes) -> StoredHold | None:
    """Write the next state of a hold; ``None``: another one is there, or none. Bodies of one hold never repeat (W2).

    Whether the new state counts its maker has to ask (:attr:`StoredHold.is_late`).

    Raises:
        CommitOutcomeUnknown: No answer, or nobody could look.
        Unavailable: The store did not take it.
    """
    info = replace_claim(store, hold.key, body, etag=hold.etag)
    return None if info is None else decode_hold(StoredObject(info, body))


def end_body(body: bytes) -> bytes:
    """Return the bytes of a tag that has ended, given those of one that has not; its files stay named.

    One that never was active holds nothing any more; one that cannot be understood goes on to hold everything, as far
    as an ended tag does.
    """
    try:
        said, listed = _split(body)
        _validate(said, StoredHold("tag", "", "", "", "", 0))
    except _MALFORMED:
        return encode_hold({"state": "ended", "at": 0, "ttl_ms": None, "note": "was not understood"})
    return encode_hold({**said, "state": "ended", "whole": True}, listed)


# The proof


def find_oldest_certain_ms(view: LogView, hold: Hold, *, config: TableConfig, written_ms: int) -> int | None:
    """Return the oldest time that can be held for certain, if some of what a hold is to keep may be gone. Pure.

    Args:
        view: The log, read after the hold was written.
        hold: What it is to keep, not below the horizon.
        config: Grace periods.
        written_ms: LastModified of the hold.
    """
    kinds = [(find_data_deaths, config.data_grace_ms), (find_log_deaths, config.log_grace_ms)]
    kinds = kinds if hold.kind in LOG_GUARDS else kinds[:1]
    certain_ms = find_certain_ms(written_ms=written_ms, grace_ms=min(grace_ms for _, grace_ms in kinds))
    if hold.since_ms is not None and hold.since_ms >= certain_ms:
        return None  # what readers saw alive then died later than any janitor deletes
    going = {
        path: death
        for find, grace_ms in kinds
        for path, death in find(view).items()
        if may_be_going(death, written_ms=written_ms, grace_ms=grace_ms)
    }
    if not any(hold.keeps(path, death) for path, death in going.items()):
        return None
    return max(death.seen_dead_ms for death in going.values()) + MAX_STORE_GAP_MS


def require_certain(view: LogView, hold: Hold, *, at_ms: int | None, config: TableConfig, written_ms: int) -> None:
    """Prove a hold: whatever it is to keep is there until it ends. Pure.

    Args:
        view: The log. WARN: J4: read after the hold was written. Before it: the log is read, a file dies and gets old,
            a janitor reads the holds, the hold is written, and proven by a log that says that the file is there.
        hold: What it is to keep.
        at_ms: The time that is to be held; ``None``: the newest state.
        config: Grace periods.
        written_ms: LastModified of the hold.

    Raises:
        BelowHorizon: Some of it is deleted, or may be at any moment; names the oldest time that can be held.
    """
    horizon_ms = oldest_ms = read_horizon_ms(view)
    if at_ms is None or at_ms >= horizon_ms:
        found_ms = find_oldest_certain_ms(view, hold, config=config, written_ms=written_ms)
        if found_ms is None:
            return
        oldest_ms = max(found_ms, horizon_ms)
    raise BelowHorizon(
        f"table {view.table}: time {view.store_now_ms if at_ms is None else at_ms} cannot be held: files of it are "
        "deleted, or may be at any moment, because they died longer ago than the grace period (log files "
        f"{config.log_grace_ms} ms, data files {config.data_grace_ms} ms); the oldest time that can be held is "
        f"{oldest_ms} ({format_ms(oldest_ms)})"
    )
