"""Pins: named snapshots that last until their time is over or somebody unpins them (rule J7).

``_icedb/pins/<name>.<id>.jsonl`` is one object: a snapshot written down in the form of a log file (its schema and its
live data files, without statistics), and in its metadata line, below ``pin``, what the pin is. So a pin needs no log
file: the log is cleaned as if there were none, and reading at a pin reads one object.

States: ``pending -> active -> ended``, by compare-and-set, none ever comes back. ``pending`` holds every dead data
file, cannot be read and runs out by itself; ``active`` holds the files that it names, and was proven to
(:mod:`icedb_log.cleaning.pin_creation`); ``ended`` holds them for one grace period more, for those who are reading.
Times run from LastModified by the store's clock. One that cannot be understood holds every dead data file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import orjson

from icedb_log.cleaning.guards import PinnedFiles
from icedb_log.errors import (
    CommitOutcomeUnknown,
    CorruptLog,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnsupportedFormat,
)
from icedb_log.keys import TablePaths, pin_name_of
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import EMPTY, FileMarker, ListedLogFile, LogFile, LogView, Snapshot
from icedb_log.storage.object_store import ObjectInfo, ObjectStore, StoredObject, list_all
from icedb_log.storage.store_clock import MAX_STORE_GAP_MS

PinState = Literal["pending", "active", "ended"]
PinStatus = Literal["pending", "active", "ended", "expired", "abandoned", "late", "unreadable"]
"""``expired``: its time is over; ``abandoned``: it stayed pending for too long; ``late``: it became active too late to
be sure of its files; ``unreadable``: it cannot be understood. Only one that is ``active`` can be read."""

PENDING_TTL_MS: Final = 60 * 60 * 1000
"""How long a pin may take to become active: one read of the log."""

PIN_FIELD: Final = "pin"
MAX_NOTE_CHARS: Final = 500

_FORMAT: Final = 1
_HEAD_BYTES: Final = 64 * 1024
_STATES: Final[tuple[PinState, ...]] = ("pending", "active", "ended")
_MALFORMED: Final = (CorruptLog, UnsupportedFormat, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Pin:
    """What a pin's metadata line and its object say.

    Attributes:
        name: Its name.
        key: Key of its object.
        etag: ETag of its object.
        modified_ms: LastModified of its object: its times run from there.
        state: As it was written; ``None``: it cannot be understood.
        at_ms: The pinned time, unix ms.
        ttl_ms: How long it lasts; ``None``: until somebody unpins it.
        claimed_ms: LastModified of its object when it was ``pending``: what died long before may be gone (J7).
        file_count: Data files that it names.
        size_bytes: Of these files.
        row_count: Rows in them; ``None``: not all files say.
        last_commit_ms: Time of the newest commit that is part of it; 0: none.
        note: What its creator had to say.
        is_whole: Whether it says which files it holds; otherwise it holds all.
    """

    name: str
    key: str
    etag: str
    modified_ms: int
    state: PinState | None = None
    at_ms: int = 0
    ttl_ms: int | None = None
    claimed_ms: int = 0
    file_count: int = 0
    size_bytes: int = 0
    row_count: int | None = None
    last_commit_ms: int = 0
    note: str = ""
    is_whole: bool = False

    @property
    def ends_ms(self) -> int | None:
        """When it ends, or ended, by the store's clock; ``None``: when somebody unpins it."""
        if self.state is None:
            return None
        if self.state == "ended":
            return self.modified_ms
        ttl_ms = PENDING_TTL_MS if self.state == "pending" else self.ttl_ms
        return None if ttl_ms is None else self.modified_ms + ttl_ms

    @property
    def is_late(self) -> bool:
        """Whether it became active when a janitor may have given the pending one up already."""
        last_ms = self.claimed_ms + PENDING_TTL_MS - MAX_STORE_GAP_MS
        return self.state == "active" and self.modified_ms > last_ms

    def status(self, now_ms: int) -> PinStatus:
        """Return how it stands at a time of the store's clock."""
        if self.state is None:
            return "unreadable"
        if self.state == "ended":
            return "ended"
        if self.ends_ms is not None and self.ends_ms <= now_ms:
            return "abandoned" if self.state == "pending" else "expired"
        return "late" if self.is_late else self.state

    def held_until_ms(self, data_grace_ms: int) -> int | None:
        """Return until when its files are kept: somebody may have begun to read them just before it ended."""
        if self.ends_ms is None or self.state == "pending":
            return self.ends_ms
        return self.ends_ms + data_grace_ms


@dataclass(frozen=True, slots=True)
class ListedPins:
    """The pins of a table, or those of one name, ended ones too, by name and time of creation.

    Attributes:
        pins: All that are there.
        store_now_ms: The store's clock before they were listed.
    """

    pins: tuple[Pin, ...]
    store_now_ms: int


class PinReader:
    """Reads which data files the pins of a table hold; keeps what it read by key and ETag. Thread-safe."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[Pin, frozenset[str] | None]] = {}

    def read(self, store: ObjectStore, paths: TablePaths, *, data_grace_ms: int) -> tuple[PinnedFiles, ...]:
        """Return what pins hold now. Costs one listing, and one GET for each pin that is new or has changed.

        Args:
            store: The object store.
            paths: Keys of the table.
            data_grace_ms: How long files are kept after a pin has ended.

        Raises:
            Unavailable: The store did not answer.
        """
        listing = list_all(store, paths.pins_prefix)
        current: dict[str, tuple[Pin, frozenset[str] | None]] = {}
        for info in listing.objects:
            known = self._cache.get(info.key)
            if known is not None and (known[0].etag, known[0].modified_ms) == (info.etag, info.modified_ms):
                current[info.key] = known
                continue
            try:
                current[info.key] = _decode_files(store.get(info.key))
            except NotFound:
                continue  # taken back before it was active, or deleted long after it had ended
        self._cache = current
        held: list[PinnedFiles] = []
        for pin, files in current.values():
            until_ms = pin.held_until_ms(data_grace_ms)
            if until_ms is None or until_ms > listing.store_now_ms:
                held.append(PinnedFiles(pin.name, files, until_ms))
        return tuple(held)


def list_pins(store: ObjectStore, paths: TablePaths, *, name: str | None = None) -> ListedPins:
    """List the pins of a table. Costs one listing and one small ranged GET for each pin.

    Args:
        store: The object store.
        paths: Keys of the table.
        name: Only those of this name.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        Unavailable: The store did not answer.
    """
    listing = list_all(store, paths.pins_prefix if name is None else paths.pins_of_name_prefix(name))
    pins: list[Pin] = []
    for info in listing.objects:
        if name is not None and pin_name_of(info.key) is None:
            continue  # no pin of this name; it shows in a list of all
        try:
            pins.append(decode_pin(_read_head(store, info)))
        except NotFound:
            continue
    return ListedPins(tuple(pins), listing.store_now_ms)


def find_pin(store: ObjectStore, paths: TablePaths, name: str) -> tuple[Pin, PinStatus]:
    """Return the pin of a name that lasts, else the last one that ended, and how it stands.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        NotFound: There is none.
        Unavailable: The store did not answer.
    """
    listed = list_pins(store, paths, name=name)
    if not listed.pins:
        raise NotFound(f"table {paths.name} has no pin {name!r}; see `icedb pins {paths.name}`")
    by_status = [(pin, pin.status(listed.store_now_ms)) for pin in listed.pins]
    lasting = [found for found in by_status if is_lasting(found[1])]
    return (lasting or by_status)[-1]


def is_lasting(status: PinStatus) -> bool:
    """Whether a pin that stands so has not ended, so that its name is taken."""
    return status in ("pending", "active", "late", "unreadable")


def read_pinned(store: ObjectStore, paths: TablePaths, name: str) -> tuple[Pin, Snapshot]:
    """Read the snapshot that a pin has written down. Its files stay for a grace period after the pin has ended.

    Raises:
        InvalidRequest: The pin has ended, is not active yet, or is not sure of its files.
        NotFound: There is no such pin.
        CorruptLog: Its object cannot be understood.
        Unavailable: The store did not answer.
    """
    pin, status = find_pin(store, paths, name)
    if status not in ("active", "unreadable"):
        raise InvalidRequest(f"table {paths.name}: {_why_unreadable(paths, pin, status)}")
    stored = store.get(pin.key, if_match=pin.etag)
    log = decode_log_file(pin.key, stored.body)
    if status == "unreadable":
        raise CorruptLog(f"{pin.key}: line 0: {PIN_FIELD} is not understood; see `icedb pins {paths.name}`")
    file = ListedLogFile(pin.key, pin.etag, pin.modified_ms, stored.info.size_bytes, log)
    snapshot = fold(LogView(paths.name, (file,), pin.modified_ms))
    return pin, replace(snapshot, as_of_ms=pin.at_ms, last_commit_ms=pin.last_commit_ms, is_stable=True)


def unpin(store: ObjectStore, paths: TablePaths, name: str) -> bool:
    """End a pin. Idempotent: returns whether that changed anything. Its files stay for one more grace period.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        NotFound: There is no such pin.
        CommitConflict: It changed at this very moment; try again.
        CommitOutcomeUnknown: No answer; look with ``icedb pins``.
        Unavailable: The store did not answer.
    """
    pin, status = find_pin(store, paths, name)
    if not is_lasting(status):
        return False
    if replace_pin(store, pin.key, end_body(store.get(pin.key, if_match=pin.etag).body), etag=pin.etag) is None:
        raise PreconditionFailed(f"table {paths.name}: pin {name} changed at this very moment; try again")
    return True


def find_ended_pins(store: ObjectStore, paths: TablePaths, *, data_grace_ms: int) -> tuple[str, ...]:
    """Return the keys of pins that hold nothing any more, by the store's clock. They never hold anything again.

    Raises:
        Unavailable: The store did not answer.
    """
    listed = list_pins(store, paths)
    ends = [(pin.key, pin.held_until_ms(data_grace_ms)) for pin in listed.pins]
    return tuple(key for key, until_ms in ends if until_ms is not None and until_ms <= listed.store_now_ms)


def encode_pin(fields: Mapping[str, Any], snapshot: Snapshot | None) -> bytes:
    """Return the bytes of a pin.

    Args:
        fields: What the pin is: ``state``, ``at``, ``ttl_ms``, ``note``, ``token`` and, once active, ``claimed``.
        snapshot: What is pinned; ``None`` while that is not known.
    """
    files: tuple[FileMarker, ...] = ()
    value = {"format": _FORMAT, "whole": snapshot is not None, **fields}
    if snapshot is None:
        return encode_log_file(LogFile(time_ms=int(fields["at"]), extra={PIN_FIELD: value}))
    # Without statistics: they are values of rows, and an erasure must leave no trace of these (E5).
    files = tuple(replace(marker, stats=EMPTY, extra=EMPTY, landed_ms=None) for marker in snapshot.live)
    value |= {
        "files": len(files),
        "bytes": snapshot.size_bytes,
        "rows": snapshot.row_count,
        "last_commit": snapshot.last_commit_ms,
    }
    logged = snapshot.logged_schema
    widened = {column: wide for column, wide in snapshot.schema.items() if logged[column] != wide}
    return encode_log_file(
        LogFile(time_ms=int(fields["at"]), schema=logged, widened=widened, markers=files, extra={PIN_FIELD: value})
    )


def decode_pin(stored: StoredObject) -> Pin:
    """Return what the first line of a pin says; its state is ``None`` if that cannot be understood."""
    info = stored.info
    name = pin_name_of(info.key)
    unreadable = Pin(name or info.key.rpartition("/")[2], info.key, info.etag, info.modified_ms)
    if name is None:
        return unreadable
    try:
        fields = _decode_fields(orjson.loads(stored.body.partition(b"\n")[0])[PIN_FIELD])
    except _MALFORMED:
        return unreadable
    return replace(unreadable, **fields)


def end_body(body: bytes) -> bytes:
    """Return the bytes of a pin that has ended, given those of one that has not; its files stay named.

    One that never was active holds nothing any more; one that cannot be understood goes on to hold everything, as far
    as an ended pin does.
    """
    first, newline, rest = body.partition(b"\n")
    try:
        metadata = orjson.loads(first)
        pin = metadata[PIN_FIELD]
        _decode_fields(pin)
        pin |= {"state": "ended", "whole": True}
    except _MALFORMED:
        return encode_pin({"state": "ended", "at": 0, "ttl_ms": None, "note": "was not understood"}, None)
    return orjson.dumps(metadata) + newline + rest


def replace_pin(store: ObjectStore, key: str, body: bytes, *, etag: str) -> ObjectInfo | None:
    """Write a pin over the one with ``etag``; ``None`` if another state is there. Bodies of one pin never repeat.

    Raises:
        CommitOutcomeUnknown: The write may still land.
    """
    is_unknown = False
    try:
        store.put_if_match(key, body, etag=etag)
    except PreconditionFailed:
        pass  # W2: an earlier try of this very request may have landed; only reading tells
    except CommitOutcomeUnknown:
        is_unknown = True
    try:
        found = store.get(key)
    except NotFound:
        return None
    except Unavailable as error:
        raise CommitOutcomeUnknown(f"{key}: no answer whether the pin was written") from error
    if found.body == body:
        return found.info
    if is_unknown and found.info.etag == etag:
        raise CommitOutcomeUnknown(f"{key}: no answer whether the pin was written")
    return None


def _why_unreadable(paths: TablePaths, pin: Pin, status: PinStatus) -> str:
    table = paths.name
    if status == "pending":
        return f"pin {pin.name} is being made, or its maker died; try again, or `icedb unpin {table} {pin.name}`"
    if status == "late":
        return (
            f"pin {pin.name} took too long to be made: some of its files may be gone; "
            f"`icedb unpin {table} {pin.name}` and pin again"
        )
    return f"pin {pin.name} has ended ({status}); see `icedb pins {table}`"


def _read_head(store: ObjectStore, info: ObjectInfo) -> StoredObject:
    """Fetch the first line of a pin."""
    body = b""
    while True:
        length = len(body) or _HEAD_BYTES
        part = store.get_range(info.key, start=len(body), length=length)
        body += part.body
        if b"\n" in body or len(part.body) < length:
            return StoredObject(part.info, body)


def _decode_fields(value: Any) -> dict[str, Any]:
    if value["format"] != _FORMAT or value["state"] not in _STATES or not isinstance(value["whole"], bool):
        raise ValueError("not a pin of this format")
    ttl_ms, rows = value["ttl_ms"], value.get("rows")
    return {
        "state": value["state"],
        "at_ms": int(value["at"]),
        "ttl_ms": None if ttl_ms is None else int(ttl_ms),
        "claimed_ms": int(value.get("claimed", 0)),
        "file_count": int(value.get("files", 0)),
        "size_bytes": int(value.get("bytes", 0)),
        "row_count": None if rows is None else int(rows),
        "last_commit_ms": int(value.get("last_commit", 0)),
        "note": str(value.get("note", "")),
        "is_whole": value["whole"],
    }


def _decode_files(stored: StoredObject) -> tuple[Pin, frozenset[str] | None]:
    pin = decode_pin(stored)
    if not pin.is_whole:
        return pin, None
    try:
        return pin, frozenset(_paths_of(decode_log_file(pin.key, stored.body).markers, pin.file_count))
    except _MALFORMED:
        return pin, None


def _paths_of(markers: Sequence[FileMarker], count: int) -> list[str]:
    if len(markers) != count:
        raise ValueError(f"{len(markers)} files where {count} were written")
    return [marker.path for marker in markers]
