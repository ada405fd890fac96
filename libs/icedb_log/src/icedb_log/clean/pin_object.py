"""One pin: what its object says and how it stands, and its bytes. Pure (rule J7).

The form is that of a log file: a schema line and the markers of live data files, without statistics; what the pin is
stands in the metadata line, below ``pin``. States: ``pending -> active -> ended``, none ever comes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import orjson

from icedb_log.errors import CorruptLog, UnsupportedFormat
from icedb_log.keys import pin_name_of
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.model import EMPTY, FileMarker, LogFile, Snapshot
from icedb_log.store.object_store import StoredObject
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

PinState = Literal["pending", "active", "ended"]
PinStatus = Literal["pending", "active", "ended", "expired", "abandoned", "late", "unreadable"]
"""``expired``: its time is over; ``abandoned``: it stayed pending for too long; ``late``: it became active too late to
be sure of its files; ``unreadable``: it cannot be understood. Only one that is ``active`` can be read."""

PENDING_TTL_MS: Final = 60 * 60 * 1000
"""How long a pin may take to become active: one read of the log."""

PIN_FIELD: Final = "pin"
MAX_NOTE_CHARS: Final = 500

_FORMAT: Final = 1
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


def decode_pinned_files(stored: StoredObject) -> tuple[Pin, frozenset[str] | None]:
    """Return a pin and the keys of its data files; ``None``: nobody can say which, so that it holds all."""
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
