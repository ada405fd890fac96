"""How a pin is made so that it holds for certain (rule J7).

Order: a small ``pending`` object, which holds every dead data file; the other pins of that name; the log; the proof;
the snapshot, by compare-and-set over the pending object. A maker that dies leaves a pending pin, which runs out.
"""

from dataclasses import dataclass
from typing import Final

from icedb_log.clean.guards import Death
from icedb_log.clean.pin_object import MAX_NOTE_CHARS, PENDING_TTL_MS, Pin, decode_pin, encode_pin, end_body
from icedb_log.clean.pins import is_lasting, list_pins, replace_pin
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    Unavailable,
)
from icedb_log.keys import TablePaths, check_pin_name
from icedb_log.log.fold import fold
from icedb_log.merge.merge_log import earliest_landing
from icedb_log.model import LogView, Snapshot
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject
from icedb_log.store.records import create_claim
from icedb_log.store.store_clock import MAX_STORE_GAP_MS, check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import renew_table_config, require_same_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS

MIN_PIN_TTL_MS: Final = SECOND_MS
MAX_PIN_TTL_MS: Final = 100 * 366 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a time cannot be pinned.

    Attributes:
        file_count: Data files of that time that a janitor may be about to delete, or has deleted.
        oldest_ms: The oldest time of which no file is in doubt.
    """

    file_count: int
    oldest_ms: int


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
    store, paths = table.store, table.paths
    _check_call(paths, name, ttl_ms=ttl_ms, note=note)
    config = renew_table_config(TableStore(store, paths))
    _choose(table.read_log(), at_ms)  # what is refused anyway leaves no trace
    _require_free(TableStore(store, paths), name)
    pin_id = table.clock.new_id()
    key = paths.pin_key(name, pin_id)
    fields = {"token": pin_id, "state": "pending", "at": at_ms or 0, "ttl_ms": ttl_ms, "note": note}
    pending = _put_pending(store, key, encode_pin(fields, None))
    try:
        # WARN: J7: after the pending pin is there. Before it, two makers of one name look, both see none, both go on.
        _require_free(TableStore(store, paths), name, mine=key)
        # WARN: J7: after the pending pin is there. Before it: the log is read, a file dies and gets old, a janitor
        # reads the pins, the pin is written and proven by a log that says that the file is live.
        view = table.read_log()
        require_same_table(TableStore(store, paths), config)  # T4: its grace period is what makes the pin certain
        snapshot = _choose(view, at_ms)
        _require_certain(paths, view, snapshot, config=config, written_ms=pending.modified_ms)
    except IceDBError:
        _take_back(store, key)
        raise
    fields |= {
        "state": "active",
        "at": view.store_now_ms if at_ms is None else at_ms,
        "claimed": pending.modified_ms,
    }
    return _activate(TableStore(store, paths), name, key, encode_pin(fields, snapshot), etag=pending.etag)


def find_doubt(view: LogView, snapshot: Snapshot, *, data_grace_ms: int, written_ms: int) -> Doubt | None:
    """Return why a pin of a snapshot may not hold; ``None``: it does. Pure.

    A janitor that does not know the pin read the pins before it was there, and the store's clock before that. So it
    deletes only what had died a grace period before the pin was written, or as much later as two answers of the store
    about one moment may lie apart.

    Args:
        view: The log, read after the pending pin was written.
        snapshot: What is pinned, folded from it.
        data_grace_ms: Of the table.
        written_ms: LastModified of the pending pin.
    """
    certain_ms = written_ms + MAX_STORE_GAP_MS - data_grace_ms
    tombstoned_ms = fold(view).tombstoned_ms
    dead = {marker.path for marker in snapshot.live if marker.path in tombstoned_ms}
    landed_ms: dict[str, int] = {}
    for file in view.files:
        for marker in file.log.markers:
            if marker.tombstoned_ms is not None:
                proof_ms = earliest_landing(marker.landed_ms, file.modified_ms)
                landed_ms[marker.path] = min(proof_ms, landed_ms.get(marker.path, proof_ms))
    doubtful = {path for path, time_ms in tombstoned_ms.items() if Death(time_ms, landed_ms[path]).died_ms < certain_ms}
    if dead.isdisjoint(doubtful):
        return None
    # At the time of its tombstone a file is not part of the state any more.
    oldest_ms = max(tombstoned_ms[path] for path in doubtful)
    return Doubt(len(dead & doubtful), max(oldest_ms, snapshot.horizon_ms))


def _check_call(paths: TablePaths, name: str, *, ttl_ms: int | None, note: str) -> None:
    check_pin_name(name)
    if ttl_ms is not None and not MIN_PIN_TTL_MS <= ttl_ms <= MAX_PIN_TTL_MS:
        raise InvalidRequest(
            f"table {paths.name}: a pin lasts {MIN_PIN_TTL_MS} to {MAX_PIN_TTL_MS} ms, not {ttl_ms}; "
            "without a duration it lasts until it is unpinned"
        )
    if len(note) > MAX_NOTE_CHARS or not (note.isprintable() or not note):
        raise InvalidRequest(f"table {paths.name}: a note has at most {MAX_NOTE_CHARS} printable characters")


def _choose(view: LogView, at_ms: int | None) -> Snapshot:
    """Fold the state to be pinned. Raises InvalidRequest, BelowHorizon."""
    if at_ms is not None:
        check_has_come(view.table, "time", at_ms, store_now_ms=view.store_now_ms)
    return fold(view, as_of_ms=at_ms)


def _require_free(table: TableStore, name: str, *, mine: str = "") -> None:
    listed = list_pins(table, name=name)
    for pin in listed.pins:
        status = pin.status(listed.store_now_ms)
        if pin.key == mine or not is_lasting(status):
            continue
        if status == "pending":
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


def _require_certain(
    paths: TablePaths, view: LogView, snapshot: Snapshot, *, config: TableConfig, written_ms: int
) -> None:
    doubt = find_doubt(view, snapshot, data_grace_ms=config.data_grace_ms, written_ms=written_ms)
    if doubt is not None:
        raise BelowHorizon(
            f"table {paths.name}: time {snapshot.as_of_ms} cannot be pinned: {doubt.file_count} of its "
            f"{len(snapshot.live)} data files died more than {config.data_grace_ms} ms ago, the grace period, and may "
            f"be deleted at any moment; the oldest time that can be pinned is {doubt.oldest_ms}"
        )


def _activate(table: TableStore, name: str, key: str, body: bytes, *, etag: str) -> Pin:
    info = replace_pin(table.store, key, body, etag=etag)
    if info is None:
        raise CommitConflict(f"table {table.name}: somebody ended pin {name!r} while it was made; pin again")
    pin = decode_pin(StoredObject(info, body))
    if pin.is_late:
        # WARN: J7: a janitor that found the pending pin run out held nothing.
        _end(table.store, key, body, etag=pin.etag)
        raise Unavailable(
            f"table {table.name}: it took longer than {PENDING_TTL_MS} ms to make pin {name!r}, and files may be gone; "
            "pin again"
        )
    return pin


def _end(store: ObjectStore, key: str, body: bytes, *, etag: str) -> None:
    """End a pin that cannot be relied on, as far as the store answers: nobody can read it anyway."""
    try:
        replace_pin(store, key, end_body(body), etag=etag)
    except (CommitOutcomeUnknown, Unavailable):
        return


def _take_back(store: ObjectStore, key: str) -> None:
    """Delete a pending pin, as far as the store answers. Nothing that is under way can make it active any more."""
    try:
        store.delete([key])
    except Unavailable:
        return  # it runs out by itself
