"""Records of erasures: what was to be erased, what was done, and which objects are gone since when (E1).

Owns ``_icedb/erasures/open/<id>.json`` and ``_icedb/erasures/closed/<id>.json``. States and who writes them, all by
compare-and-set, each write repeatable::

    (nothing) ── put if absent, CLI ──▶ requested ──▶ deleted ──▶ complete     by :mod:`icedb_log.erasure.erasure_run`
                                            └──────▶ refused                   by the same: the condition does not fit
                                                        deleted: the janitor notes what it has deleted

A record that has ended is written once more under ``closed/``, with ``If-None-Match: *``, and never changes again; then
the open one goes. So the open ones, which workers look for all the time, stay few however many certificates there are.
"""

import contextlib
from collections.abc import Callable, Collection
from typing import Final

from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.erasure.erasure_record import (
    Erasure,
    NamedObjects,
    NotCovered,
    decode_erasure,
    encode_erasure,
    mark_gone,
)
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    SchemaConflict,
)
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import delete_or_raise, list_all
from icedb_log.store.records import Record
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import DIALECT, MAX_QUERY_BYTES

MAX_OPEN_ERASURES: Final = 1000
MAX_NOTE_CHARS: Final = 2000
MAX_CHANGE_ATTEMPTS: Final = 10


def create_erasure(
    table: TableStore, *, condition: str, clock: Clock, requested_by: str = "", note: str = ""
) -> Erasure:
    """Ask for an erasure: one conditional PUT. Not idempotent: a second call asks for a second one, which is harmless.

    A worker checks the condition, SQL over the table's columns; one that is wrong ends as ``refused``.

    Raises:
        NotFound: No such table.
        InvalidRequest: No condition, or a text that is too long, or too many erasures are open.
        CommitOutcomeUnknown: No usable answer; look whether it is there before asking again.
        Unavailable: The store did not answer.
    """
    read_table_config(table)
    _check_length(table.paths, condition)
    for what, text in (("note", note), ("name of who asks", requested_by)):
        if len(text) > MAX_NOTE_CHARS:
            raise InvalidRequest(f"table {table.name}: the {what} may have {MAX_NOTE_CHARS} characters")
    # WARN: before the time of the request is read. A retry moves a batch from here to staging, where it looks like one
    # that came after the request: it is either seen here, or was staged by that time and is waited for (E2).
    quarantined = find_quarantined(table)
    page = table.store.list_page(table.paths.open_erasures_prefix)
    if len(page.objects) >= MAX_OPEN_ERASURES:
        raise InvalidRequest(
            f"table {table.name}: {MAX_OPEN_ERASURES} erasures are open; wait until some are complete, or join "
            "conditions with OR"
        )
    erasure = Erasure(
        erasure_id=new_batch_id(clock),
        table=table.name,
        condition=condition,
        dialect=DIALECT,
        requested_by=requested_by,
        note=note,
        requested_ms=page.store_now_ms,  # E2: before the PUT: whatever was accepted earlier is covered
        not_covered=NotCovered(quarantine=quarantined),
    )
    key = table.paths.open_erasure_key(erasure.erasure_id)
    try:
        table.store.put_if_absent(key, encode_erasure(erasure))
    except (PreconditionFailed, CommitOutcomeUnknown) as error:
        # W2: refused by its own first try, or without an answer: the id is nobody else's.
        try:
            read_erasure(table, erasure.erasure_id)
        except NotFound:
            raise CommitOutcomeUnknown(
                f"table {table.name}: no answer whether erasure {erasure.erasure_id} was written; see `icedb erasure "
                f"list {table.name}` before you ask again"
            ) from error
    return erasure


def renew_condition(table: TableStore, erasure_id: str, *, condition: str) -> Erasure:
    """Give an open erasure of an earlier release its condition in the SQL of this one. Idempotent.

    Raises:
        NotFound: It is not open.
        InvalidRequest: Its condition is of this dialect already, and another one.
        IceDBError: As :func:`change_erasure`.
    """
    _check_length(table.paths, condition)

    def renew(current: Erasure) -> Erasure:
        if current.dialect is not None and current.condition != condition:
            raise InvalidRequest(
                f"table {table.name}: erasure {erasure_id} has a condition that is used as it is; ask for another one"
            )
        if current.dialect is not None:
            return current
        # E3: what a deletion by the old condition left live may be meant by this one.
        state = "requested" if current.state == "deleted" else current.state
        return current.model_copy(update={"condition": condition, "dialect": DIALECT, "state": state})

    return change_erasure(table, check_erasure_id(erasure_id), renew)


def require_dialect(erasure: Erasure) -> None:
    """Raise SchemaConflict for a condition that an earlier release read as Spark's SQL: it may mean other rows."""
    if erasure.dialect != DIALECT:
        raise SchemaConflict(
            f"table {erasure.table}: the condition of erasure {erasure.erasure_id} was written for Spark's SQL, and is "
            "DuckDB's now, in which it may mean other rows; give the condition that DuckDB is to use: icedb erase "
            f"{erasure.table} --renew {erasure.erasure_id} --where …; until then it waits"
        )


def _check_length(paths: TablePaths, condition: str) -> None:
    if not condition.strip() or len(condition.encode()) > MAX_QUERY_BYTES:
        raise InvalidRequest(f"table {paths.name}: give a condition of 1 to {MAX_QUERY_BYTES} bytes")


def read_erasure(table: TableStore, erasure_id: str) -> Erasure:
    """Read one erasure, open or closed.

    Raises:
        InvalidRequest: Not an id.
        NotFound: No such erasure.
        UnsupportedFormat: The record cannot be read.
    """
    check_erasure_id(erasure_id)
    # In this order: a record that has left the open ones is among the closed ones already.
    for key in (table.paths.open_erasure_key(erasure_id), table.paths.closed_erasure_key(erasure_id)):
        try:
            return decode_erasure(table.store.get(key))
        except NotFound:
            continue
    raise NotFound(
        f"table {table.name}: there is no erasure {erasure_id}; `icedb erasure list {table.name}` shows those there are"
    )


def find_closed(table: TableStore, erasure_id: str) -> Erasure | None:
    """Return an erasure that has ended; ``None`` if it has not, or is not known."""
    try:
        return decode_erasure(table.store.get(table.paths.closed_erasure_key(erasure_id)))
    except NotFound:
        return None


def find_quarantined(table: TableStore) -> NamedObjects:
    """Return the batches of which something lies in quarantine, with a reason or, after a crash, without."""
    keys = [info.key for info in list_all(table.store, table.paths.quarantine_prefix).objects]
    return NamedObjects.of({key.rpartition("/")[2].partition(".")[0] for key in keys})


def list_open_ids(table: TableStore) -> tuple[str, ...]:
    """Return the ids of the erasures that have not ended, oldest first. Costs one listing."""
    return tuple(_id_of(info.key) for info in list_all(table.store, table.paths.open_erasures_prefix).objects)


def find_oldest_open(table: TableStore) -> tuple[int, int | None]:
    """Return how many erasures have not ended, and when the oldest of them was asked for. Costs one listing.

    The time is that of its id, by the clock of whoever asked, unix ms; ``None`` without one.
    """
    ids = list_open_ids(table)
    times: list[int] = []
    for erasure_id in ids:
        with contextlib.suppress(InvalidRequest):  # not an erasure of ours; it is counted all the same
            times.append(parse_uuid7_ms(erasure_id))
    return len(ids), min(times, default=None)


def list_erasures(table: TableStore, *, limit: int) -> tuple[Erasure, ...]:
    """Read the newest erasures of a table, at most ``limit``, newest first. Costs two listings and a GET for each."""
    ids = {*list_open_ids(table)}
    ids |= {_id_of(info.key) for info in list_all(table.store, table.paths.closed_erasures_prefix).objects}
    return tuple(read_erasure(table, erasure_id) for erasure_id in sorted(ids, reverse=True)[:limit])


def change_erasure(table: TableStore, erasure_id: str, change: Callable[[Erasure], Erasure]) -> Erasure:
    """Change an open record by compare-and-set and return what it says then.

    ``change`` makes the new record of the current one; it is called again when somebody else was faster, so it must
    change only what is still to be changed. Returning its argument writes nothing.

    Raises:
        NotFound: It is not open (any more).
        CommitConflict: Others kept changing it; the next run goes on.
        UnsupportedFormat: The record cannot be read.
        Unavailable: The store did not answer.
    """
    key = table.paths.open_erasure_key(erasure_id)

    def change_open(current: Erasure | None) -> Erasure:
        if current is None:
            raise NotFound(f"{key}: is not there")
        return change(current)

    # W2: only reading tells; what has landed is not to be changed any more.
    gave_up = CommitConflict(f"{key}: changed by others {MAX_CHANGE_ATTEMPTS} times in a row; the next run goes on")
    record = Record(table.store, key, decode_erasure, encode_erasure)
    return record.change(change_open, tries=MAX_CHANGE_ATTEMPTS, gave_up=gave_up)


def close_erasure(table: TableStore, erasure: Erasure) -> Erasure:
    """Put a record that has ended where it never changes, and remove the open one. Idempotent.

    Returns what stands there: the first one that ended counts.
    """
    key = table.paths.closed_erasure_key(erasure.erasure_id)
    try:
        table.store.put_if_absent(key, encode_erasure(erasure))
    except PreconditionFailed:
        erasure = decode_erasure(table.store.get(key))
    delete_or_raise(table.store, [table.paths.open_erasure_key(erasure.erasure_id)])
    return erasure


def note_deletions(table: TableStore, keys: Collection[str]) -> int:
    """Write into the open records of a table that the janitor has deleted some objects; return how many changed.

    The time is the store's, read after the deletion: by then they were gone. Costs one listing without open erasures.
    Idempotent.

    Raises:
        IceDBError: As :func:`change_erasure`; what was not noted is found out by looking.
    """
    if not keys:
        return 0
    listing = list_all(table.store, table.paths.open_erasures_prefix)
    deleted = set(keys)

    def note(current: Erasure) -> Erasure:
        return mark_gone(current, deleted, gone_ms=listing.store_now_ms, known_by="janitor")

    changed_count = 0
    for info in listing.objects:
        before = decode_erasure(table.store.get(info.key))
        if note(before) != before:
            change_erasure(table, before.erasure_id, note)
            changed_count += 1
    return changed_count


def check_erasure_id(erasure_id: str) -> str:
    """Return an id if it can be one of an erasure, else raise InvalidRequest."""
    try:
        parse_uuid7_ms(erasure_id)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{erasure_id[:80]!r} is not the id of an erasure; `icedb erasure list TABLE` shows them"
        ) from error
    return erasure_id


def _id_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")
