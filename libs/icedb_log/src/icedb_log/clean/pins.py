"""Pins: named snapshots that last until their time is over or somebody unpins them (rule J7).

``_icedb/pins/<name>.<id>.jsonl`` is one object: a snapshot written down in the form of a log file (its schema and its
live data files, without statistics), and in its metadata line, below ``pin``, what the pin is. So a pin needs no log
file: the log is cleaned as if there were none, and reading at a pin reads one object.

States: ``pending -> active -> ended``, by compare-and-set, none ever comes back. ``pending`` holds every dead data
file, cannot be read and runs out by itself; ``active`` holds the files that it names, and was proven to; ``ended``
holds them for one grace period more, for those who are reading. Times run from LastModified by the store's clock. One
that cannot be understood holds every dead data file.

Order of making: the ``pending`` object; the other pins of that name; the log; the proof; the snapshot, by
compare-and-set over the pending object. A maker that dies leaves a pending pin, which runs out.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import Field, TypeAdapter

from icedb_log.clean.guards import Hold, find_data_deaths, may_be_going
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnsupportedFormat,
)
from icedb_log.keys import check_pin_name, pin_name_of
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import EMPTY, ListedLogFile, LogFile, LogView, Snapshot
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject, list_all
from icedb_log.store.records import KnownObjects, create_claim, replace_claim
from icedb_log.store.store_clock import MAX_STORE_GAP_MS, check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import renew_table_config, require_same_table
from icedb_log.table.table import Table
from icedb_log.units import DAY_MS, HOUR_MS, SECOND_MS

PinState = Literal["pending", "active", "ended"]
PinStatus = Literal["pending", "active", "ended", "expired", "abandoned", "late", "unreadable"]
"""``expired``: its time is over; ``abandoned``: it stayed pending for too long; ``late``: it became active too late to
be sure of its files; ``unreadable``: it cannot be understood. Only one that is ``active`` can be read."""

PENDING_TTL_MS: Final = HOUR_MS
"""How long a pin may take to become active: one read of the log."""
MIN_PIN_TTL_MS: Final = SECOND_MS
MAX_PIN_TTL_MS: Final = 100 * 366 * DAY_MS
MAX_NOTE_CHARS: Final = 500
PIN_FIELD: Final = "pin"

_FORMAT: Final = 1
_MALFORMED: Final = (CorruptLog, UnsupportedFormat, ValueError, KeyError, TypeError)
_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pin:
    """What a pin's metadata line and its object say.

    Attributes:
        modified_ms: LastModified of its object: its times run from there.
        state: As it was written; ``None``: it cannot be understood.
        at_ms: The pinned time, unix ms.
        ttl_ms: How long it lasts; ``None``: until somebody unpins it.
        claimed_ms: LastModified of its object when it was ``pending``: what died long before may be gone (J7).
        row_count: Rows in its data files; ``None``: not all files say.
        last_commit_ms: Time of the newest commit that is part of it; 0: none.
        is_whole: Whether it says which files it holds; otherwise it holds all.
    """

    name: str
    key: str
    etag: str
    modified_ms: int
    state: PinState | None = None
    at_ms: Annotated[int, Field(alias="at")] = 0
    ttl_ms: int | None = None
    claimed_ms: Annotated[int, Field(alias="claimed")] = 0
    file_count: Annotated[int, Field(alias="files")] = 0
    size_bytes: Annotated[int, Field(alias="bytes")] = 0
    row_count: Annotated[int | None, Field(alias="rows")] = None
    last_commit_ms: Annotated[int, Field(alias="last_commit")] = 0
    note: str = ""
    is_whole: Annotated[bool, Field(alias="whole", strict=True)] = False

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


# The object

_PIN: Final = TypeAdapter(Pin)


def encode_pin(fields: Mapping[str, Any], snapshot: Snapshot | None) -> bytes:
    """Return the bytes of a pin.

    Args:
        fields: What the pin is: ``state``, ``at``, ``ttl_ms``, ``note``, ``token`` and, once active, ``claimed``.
        snapshot: What is pinned; ``None`` while that is not known.
    """
    value = {"format": _FORMAT, "whole": snapshot is not None, **fields}
    log = LogFile(time_ms=int(fields["at"]), extra={PIN_FIELD: value})
    if snapshot is None:
        return encode_log_file(log)
    value |= {
        "files": len(snapshot.live),
        "bytes": snapshot.size_bytes,
        "rows": snapshot.row_count,
        "last_commit": snapshot.last_commit_ms,
    }
    logged = snapshot.logged_schema
    widened = {column: wide for column, wide in snapshot.schema.items() if logged[column] != wide}
    # Without statistics: they are values of rows, and an erasure must leave no trace of these (E5).
    files = tuple(replace(marker, stats=EMPTY, extra=EMPTY, landed_ms=None) for marker in snapshot.live)
    return encode_log_file(replace(log, schema=logged, widened=widened, markers=files))


def decode_pin(stored: StoredObject) -> Pin:
    """Return what the first line of a pin says; its state is ``None`` if that cannot be understood."""
    name = pin_name_of(stored.info.key)
    if name is not None:
        with contextlib.suppress(*_MALFORMED):
            return _decode(orjson.loads(stored.body.partition(b"\n")[0])[PIN_FIELD], name, stored.info)
    return Pin(name or stored.info.key.rpartition("/")[2], stored.info.key, stored.info.etag, stored.info.modified_ms)


def end_body(body: bytes) -> bytes:
    """Return the bytes of a pin that has ended, given those of one that has not; its files stay named.

    One that never was active holds nothing any more; one that cannot be understood goes on to hold everything, as far
    as an ended pin does.
    """
    first, newline, rest = body.partition(b"\n")
    try:
        metadata = orjson.loads(first)
        pin = metadata[PIN_FIELD]
        _decode(pin, "", ObjectInfo("", "", 0, 0))
        pin |= {"state": "ended", "whole": True}
    except _MALFORMED:
        return encode_pin({"state": "ended", "at": 0, "ttl_ms": None, "note": "was not understood"}, None)
    return orjson.dumps(metadata) + newline + rest


def _decode(said: Any, name: str, info: ObjectInfo) -> Pin:
    if said["format"] != _FORMAT or said["state"] is None or not said.keys() >= {"at", "ttl_ms", "whole"}:
        raise ValueError("not a pin of this format")
    place = {"name": name, "key": info.key, "etag": info.etag, "modified_ms": info.modified_ms}
    return _PIN.validate_python({**said, **place})


def decode_pinned_files(stored: StoredObject) -> tuple[Pin, frozenset[str] | None]:
    """Return a pin and the keys of its data files; ``None``: nobody can say which, so that it holds all."""
    pin = decode_pin(stored)
    if not pin.is_whole:
        return pin, None
    try:
        paths = [marker.path for marker in decode_log_file(pin.key, stored.body).markers]
    except _MALFORMED:
        return pin, None
    return pin, frozenset(paths) if len(paths) == pin.file_count else None


# Reading


@dataclass(frozen=True, slots=True)
class ListedPins:
    """The pins of a table, or of one name, ended ones too, by name and age; the store's clock before the listing."""

    pins: tuple[Pin, ...]
    store_now_ms: int

    @property
    def lasting(self) -> tuple[Pin, ...]:
        """Those that have not ended, so that their names are taken."""
        return tuple(pin for pin in self.pins if is_lasting(pin.status(self.store_now_ms)))


class PinReader:
    """Reads which data files the pins of a table hold; keeps what it read. Thread-safe."""

    def __init__(self) -> None:
        self._known = KnownObjects(decode_pinned_files, threads=1)  # each may name a million files

    def read(self, table: TableStore, *, data_grace_ms: int, latest_ms: int | None = None) -> tuple[Hold, ...]:
        """Return what pins hold now. Costs one listing, and one GET for each pin that is new or has changed.

        Files are kept for ``data_grace_ms`` after a pin has ended. It is ``latest_ms`` at most, whatever the store's
        clock says now (J1).

        Raises:
            Unavailable: The store did not answer.
        """
        listing = list_all(table.store, table.paths.pins_prefix)
        now_ms = listing.store_now_ms if latest_ms is None else min(listing.store_now_ms, latest_ms)
        pins = self._known.read(table.store, listing.objects)
        held = (Hold("pin", pin.name, pin.held_until_ms(data_grace_ms), files=files) for pin, files in pins)
        return tuple(hold for hold in held if hold.until_ms is None or hold.until_ms > now_ms)


def list_pins(table: TableStore, *, name: str | None = None) -> ListedPins:
    """List the pins of a table. Costs one listing and one small ranged GET for each pin.

    Raises:
        InvalidRequest: ``name`` is no name of a pin.
        Unavailable: The store did not answer.
    """
    listing = list_all(table.store, table.paths.pins_prefix if name is None else table.paths.pins_of_name_prefix(name))
    pins: list[Pin] = []
    for info in listing.objects:
        if name is not None and pin_name_of(info.key) is None:
            continue  # no pin of this name; it shows in a list of all
        with contextlib.suppress(NotFound):
            pins.append(decode_pin(_read_head(table.store, info)))
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
    pin = (listed.lasting or listed.pins)[-1]
    return pin, pin.status(listed.store_now_ms)


def is_lasting(status: PinStatus) -> bool:
    """Whether a pin that stands so has not ended, so that its name is taken."""
    return status in ("pending", "active", "late", "unreadable")


def read_pinned(table: TableStore, name: str, *, is_compact: bool = False) -> tuple[Pin, Snapshot]:
    """Read the snapshot that a pin has written down. Its files stay for a grace period after the pin has ended.

    ``is_compact`` keeps the markers' lines instead of what they decode to.

    Raises:
        InvalidRequest: The pin has ended, is not active yet, or is not sure of its files.
        NotFound: There is no such pin.
        CorruptLog: Its object cannot be understood.
        Unavailable: The store did not answer.
    """
    pin, status = find_pin(table, name)
    if status not in ("active", "unreadable"):
        raise InvalidRequest(f"table {table.name}: {_why_unreadable(table.name, pin, status)}")
    stored = table.store.get(pin.key, if_match=pin.etag)
    log = decode_log_file(pin.key, stored.body, is_compact=is_compact)
    if status == "unreadable":
        raise CorruptLog(f"{pin.key}: line 0: {PIN_FIELD} is not understood; see `icedb pins {table.name}`")
    file = ListedLogFile(pin.key, pin.etag, pin.modified_ms, stored.info.size_bytes, log)
    snapshot = fold(LogView(table.name, (file,), pin.modified_ms))
    return pin, replace(snapshot, as_of_ms=pin.at_ms, last_commit_ms=pin.last_commit_ms, is_stable=True)


def find_ended_pins(table: TableStore, *, data_grace_ms: int) -> tuple[str, ...]:
    """Return the keys of pins that hold nothing any more, by the store's clock. They never hold anything again.

    Raises:
        Unavailable: The store did not answer.
    """
    listed = list_pins(table)
    ends = [(pin.key, pin.held_until_ms(data_grace_ms)) for pin in listed.pins]
    return tuple(key for key, until_ms in ends if until_ms is not None and until_ms <= listed.store_now_ms)


def _why_unreadable(table: str, pin: Pin, status: PinStatus) -> str:
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


# Making and ending


def create_pin(table: Table, name: str, *, at_ms: int | None = None, ttl_ms: int | None = None, note: str = "") -> Pin:
    """Pin a table as of a time, so that its data files stay and can be read until the pin ends. Not idempotent.

    Args:
        table: The table. This host's clock decides nothing about times.
        name: Of the pin; free again when the pin has ended.
        at_ms: Which time, unix ms; ``None``: the newest state.
        ttl_ms: How long, from now; ``None``: until somebody unpins it.
        note: Why, for people.

    Raises:
        InvalidRequest: A bad name, duration or note, a time in the future, or the name is taken.
        BelowHorizon: The time cannot be read any more, or some of its files may be gone.
        NotFound: The table is dropped meanwhile.
        Fenced: It is another one of that name meanwhile.
        HaltError: The log cannot be read.
        CommitConflict: Somebody ended the pin while it was made.
        CommitOutcomeUnknown: No answer; look with ``icedb pins``.
        Unavailable: The store did not answer, or it took too long.
    """
    check_pin_name(name)
    if ttl_ms is not None and not MIN_PIN_TTL_MS <= ttl_ms <= MAX_PIN_TTL_MS:
        raise InvalidRequest(
            f"table {table.name}: a pin lasts {MIN_PIN_TTL_MS} to {MAX_PIN_TTL_MS} ms, not {ttl_ms}; "
            "without a duration it lasts until it is unpinned"
        )
    if len(note) > MAX_NOTE_CHARS or not (note.isprintable() or not note):
        raise InvalidRequest(f"table {table.name}: a note has at most {MAX_NOTE_CHARS} printable characters")
    config = renew_table_config(table)
    _choose(table.read_log(), at_ms)  # what is refused anyway leaves no trace
    _require_free(table, name)
    pin_id = table.clock.new_id()
    key = table.paths.pin_key(name, pin_id)
    fields = {"token": pin_id, "state": "pending", "at": at_ms or 0, "ttl_ms": ttl_ms, "note": note}
    pending = _put_pending(table.store, key, encode_pin(fields, None))
    try:
        # WARN: J7: after the pending pin is there. Before it, two makers of one name look, both see none, both go on.
        _require_free(table, name, mine=key)
        # WARN: J7: after the pending pin is there. Before it: the log is read, a file dies and gets old, a janitor
        # reads the pins, the pin is written and proven by a log that says that the file is live.
        view = table.read_log()
        require_same_table(table, config)  # T4: its grace period is what makes the pin certain
        snapshot = _choose(view, at_ms)
        _require_certain(view, snapshot, data_grace_ms=config.data_grace_ms, written_ms=pending.modified_ms)
    except IceDBError:
        with contextlib.suppress(Unavailable):  # it runs out by itself; nothing under way can make it active any more
            table.store.delete([key])
        raise
    at_ms = view.store_now_ms if at_ms is None else at_ms
    fields |= {"state": "active", "at": at_ms, "claimed": pending.modified_ms}
    return _activate(table, name, key, encode_pin(fields, snapshot), etag=pending.etag)


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
    body = end_body(table.store.get(pin.key, if_match=pin.etag).body)
    if _replace(table.store, pin.key, body, etag=pin.etag) is None:
        raise PreconditionFailed(f"table {table.name}: pin {name} changed at this very moment; try again")
    return True


def find_doubt(view: LogView, snapshot: Snapshot, *, data_grace_ms: int, written_ms: int) -> tuple[int, int] | None:
    """Return how many files of a snapshot a janitor may be about to delete, and the oldest time without such a file.

    ``None``: a pin of it holds. Pure.

    Args:
        view: The log, read after the pending pin was written.
        snapshot: What is pinned, folded from it.
        data_grace_ms: Of the table.
        written_ms: LastModified of the pending pin.
    """
    doubtful = {
        path: death.tombstoned_ms
        for path, death in find_data_deaths(view).items()
        if may_be_going(death, written_ms=written_ms, grace_ms=data_grace_ms)
    }
    count = sum(marker.path in doubtful for marker in snapshot.live)
    # At the time of its tombstone a file is not part of the state any more.
    return (count, max(*doubtful.values(), snapshot.horizon_ms)) if count else None


def _choose(view: LogView, at_ms: int | None) -> Snapshot:
    """Fold the state to be pinned. Raises InvalidRequest, BelowHorizon."""
    if at_ms is not None:
        check_has_come(view.table, "time", at_ms, store_now_ms=view.store_now_ms)
    return fold(view, as_of_ms=at_ms)


def _require_free(table: TableStore, name: str, *, mine: str = "") -> None:
    listed = list_pins(table, name=name)
    for pin in listed.lasting:
        if pin.key == mine:
            continue
        if pin.status(listed.store_now_ms) == "pending":
            raise InvalidRequest(
                f"table {table.name}: pin {name!r} is being made by somebody else, or its maker died; try again, "
                f"another name, or `icedb unpin {table.name} {name}`"
            )
        raise InvalidRequest(
            f"table {table.name}: pin {name!r} exists already, of time {pin.at_ms}; take another name, or "
            f"`icedb unpin {table.name} {name}` first"
        )


def _put_pending(store: ObjectStore, key: str, body: bytes) -> ObjectInfo:
    """Write the pending pin. Its key is used once, so that whatever stands there is this one (W2)."""
    ended = "somebody took the pin away while it was made; pin again"
    found = create_claim(store, key, body, ended=ended)
    if found.body != body:
        # WARN: J7: not with the ETag of whatever stands there. Somebody ends the pending pin just after it was written;
        # it holds nothing any more, files go, and the pin would become active over its own end.
        raise CommitConflict(f"{key}: somebody ended the pin while it was made; pin again")
    return found.info


def _require_certain(view: LogView, snapshot: Snapshot, *, data_grace_ms: int, written_ms: int) -> None:
    doubt = find_doubt(view, snapshot, data_grace_ms=data_grace_ms, written_ms=written_ms)
    if doubt is not None:
        raise BelowHorizon(
            f"table {view.table}: time {snapshot.as_of_ms} cannot be pinned: {doubt[0]} of its {len(snapshot.live)} "
            f"data files died more than {data_grace_ms} ms ago, the grace period, and may be deleted at any moment; "
            f"the oldest time that can be pinned is {doubt[1]}"
        )


def _activate(table: TableStore, name: str, key: str, body: bytes, *, etag: str) -> Pin:
    info = _replace(table.store, key, body, etag=etag)
    if info is None:
        raise CommitConflict(f"table {table.name}: somebody ended pin {name!r} while it was made; pin again")
    pin = decode_pin(StoredObject(info, body))
    if pin.is_late:
        # WARN: J7: a janitor that found the pending pin run out held nothing. It is ended as far as the store answers:
        # nobody can read it anyway.
        with contextlib.suppress(CommitOutcomeUnknown, Unavailable):
            _replace(table.store, key, end_body(body), etag=pin.etag)
        raise Unavailable(
            f"table {table.name}: it took longer than {PENDING_TTL_MS} ms to make pin {name!r}, and files may be gone; "
            "pin again"
        )
    return pin


def _replace(store: ObjectStore, key: str, body: bytes, *, etag: str) -> ObjectInfo | None:
    """Write a pin over the one with ``etag``; ``None`` if another state is there. Raises CommitOutcomeUnknown."""
    try:
        return replace_claim(store, key, body, etag=etag)  # W2: bodies of one pin never repeat
    except (CommitOutcomeUnknown, Unavailable) as error:
        raise CommitOutcomeUnknown(f"{key}: no answer whether the pin was written") from error
