"""Pins: named snapshots that last until their time is over or somebody unpins them (rule J7).

``_icedb/pins/<name>.<id>.jsonl`` is one object: a snapshot written down in the form of a log file (its schema and its
live data files, without statistics), and in its metadata line, below ``pin``, what the pin is. So a pin needs no log
file: the log is cleaned as if there were none, and reading at a pin reads one object.

States: ``pending -> active -> ended``, by compare-and-set, none ever comes back. ``pending`` holds every dead data
file, cannot be read and runs out by itself; ``active`` holds the files that it names, and was proven to
(:mod:`icedb_log.clean.pin_creation`); ``ended`` holds them for one grace period more, for those who are reading.
Times run from LastModified by the store's clock. One that cannot be understood holds every dead data file.
"""

from dataclasses import dataclass, replace
from typing import Final

from icedb_log.clean.guards import PinnedFiles
from icedb_log.clean.pin_object import PIN_FIELD, Pin, PinStatus, decode_pin, decode_pinned_files, end_body
from icedb_log.errors import (
    CommitOutcomeUnknown,
    CorruptLog,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.keys import TablePaths, pin_name_of
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import ListedLogFile, LogView, Snapshot
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject, list_all
from icedb_log.store.table_store import TableStore

_HEAD_BYTES: Final = 64 * 1024


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

    def read(self, table: TableStore, *, data_grace_ms: int, latest_ms: int | None = None) -> tuple[PinnedFiles, ...]:
        """Return what pins hold now. Costs one listing, and one GET for each pin that is new or has changed.

        Args:
            table: Its store and keys.
            data_grace_ms: How long files are kept after a pin has ended.
            latest_ms: It is this late at most, whatever the store's clock says now (J1).

        Raises:
            Unavailable: The store did not answer.
        """
        listing = list_all(table.store, table.paths.pins_prefix)
        now_ms = listing.store_now_ms if latest_ms is None else min(listing.store_now_ms, latest_ms)
        current: dict[str, tuple[Pin, frozenset[str] | None]] = {}
        for info in listing.objects:
            known = self._cache.get(info.key)
            if known is not None and (known[0].etag, known[0].modified_ms) == (info.etag, info.modified_ms):
                current[info.key] = known
                continue
            try:
                current[info.key] = decode_pinned_files(table.store.get(info.key))
            except NotFound:
                continue  # taken back before it was active, or deleted long after it had ended
        self._cache = current
        held: list[PinnedFiles] = []
        for pin, files in current.values():
            until_ms = pin.held_until_ms(data_grace_ms)
            if until_ms is None or until_ms > now_ms:
                held.append(PinnedFiles(pin.name, files, until_ms))
        return tuple(held)


def list_pins(table: TableStore, *, name: str | None = None) -> ListedPins:
    """List the pins of a table. Costs one listing and one small ranged GET for each pin.

    Args:
        table: Its store and keys.
        name: Only those of this name.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        Unavailable: The store did not answer.
    """
    listing = list_all(table.store, table.paths.pins_prefix if name is None else table.paths.pins_of_name_prefix(name))
    pins: list[Pin] = []
    for info in listing.objects:
        if name is not None and pin_name_of(info.key) is None:
            continue  # no pin of this name; it shows in a list of all
        try:
            pins.append(decode_pin(_read_head(table.store, info)))
        except NotFound:
            continue
    return ListedPins(tuple(pins), listing.store_now_ms)


def find_pin(table: TableStore, name: str) -> tuple[Pin, PinStatus]:
    """Return the pin of a name that lasts, else the last one that ended, and how it stands.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        NotFound: There is none.
        Unavailable: The store did not answer.
    """
    listed = list_pins(table, name=name)
    if not listed.pins:
        raise NotFound(f"table {table.name} has no pin {name!r}; see `icedb pins {table.name}`")
    by_status = [(pin, pin.status(listed.store_now_ms)) for pin in listed.pins]
    lasting = [found for found in by_status if is_lasting(found[1])]
    return (lasting or by_status)[-1]


def is_lasting(status: PinStatus) -> bool:
    """Whether a pin that stands so has not ended, so that its name is taken."""
    return status in ("pending", "active", "late", "unreadable")


def read_pinned(table: TableStore, name: str, *, is_compact: bool = False) -> tuple[Pin, Snapshot]:
    """Read the snapshot that a pin has written down. Its files stay for a grace period after the pin has ended.

    Args:
        table: Its store and keys.
        name: Name of the pin.
        is_compact: Keep the markers' lines instead of what they decode to.

    Raises:
        InvalidRequest: The pin has ended, is not active yet, or is not sure of its files.
        NotFound: There is no such pin.
        CorruptLog: Its object cannot be understood.
        Unavailable: The store did not answer.
    """
    pin, status = find_pin(table, name)
    if status not in ("active", "unreadable"):
        raise InvalidRequest(f"table {table.name}: {_why_unreadable(table.paths, pin, status)}")
    stored = table.store.get(pin.key, if_match=pin.etag)
    log = decode_log_file(pin.key, stored.body, is_compact=is_compact)
    if status == "unreadable":
        raise CorruptLog(f"{pin.key}: line 0: {PIN_FIELD} is not understood; see `icedb pins {table.name}`")
    file = ListedLogFile(pin.key, pin.etag, pin.modified_ms, stored.info.size_bytes, log)
    snapshot = fold(LogView(table.name, (file,), pin.modified_ms))
    return pin, replace(snapshot, as_of_ms=pin.at_ms, last_commit_ms=pin.last_commit_ms, is_stable=True)


def unpin(table: TableStore, name: str) -> bool:
    """End a pin. Idempotent: returns whether that changed anything. Its files stay for one more grace period.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        NotFound: There is no such pin.
        CommitConflict: It changed at this very moment; try again.
        CommitOutcomeUnknown: No answer; look with ``icedb pins``.
        Unavailable: The store did not answer.
    """
    pin, status = find_pin(table, name)
    if not is_lasting(status):
        return False
    if (
        replace_pin(table.store, pin.key, end_body(table.store.get(pin.key, if_match=pin.etag).body), etag=pin.etag)
        is None
    ):
        raise PreconditionFailed(f"table {table.name}: pin {name} changed at this very moment; try again")
    return True


def find_ended_pins(table: TableStore, *, data_grace_ms: int) -> tuple[str, ...]:
    """Return the keys of pins that hold nothing any more, by the store's clock. They never hold anything again.

    Raises:
        Unavailable: The store did not answer.
    """
    listed = list_pins(table)
    ends = [(pin.key, pin.held_until_ms(data_grace_ms)) for pin in listed.pins]
    return tuple(key for key, until_ms in ends if until_ms is not None and until_ms <= listed.store_now_ms)


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
