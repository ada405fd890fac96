"""Records of erasures: what was to be erased, what was done, and which objects are gone since when (E1).

Owns ``_icedb/erasures/open/<id>.json`` and ``_icedb/erasures/closed/<id>.json``. States and who writes them, all by
compare-and-set, each write repeatable::

    (nothing) ── put if absent, CLI ──▶ requested ──▶ deleted ──▶ complete     by :mod:`icedb_log.erasure.erasure_run`
                                            └──────▶ refused                   by the same: the condition does not fit
                                                        deleted: the janitor notes what it has deleted

A record that has ended is written once more under ``closed/``, with ``If-None-Match: *``, and never changes again; then
the open one goes. So the open ones, which workers look for all the time, stay few however many certificates there are.
The certificate is made of the record (E6).
"""

import contextlib
from collections.abc import Callable, Collection
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clock import Clock, format_ms, new_batch_id, parse_uuid7_ms
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    SchemaConflict,
    UnsupportedFormat,
)
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import StoredObject, delete_or_raise, list_all
from icedb_log.store.records import Record, parse_record
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import DIALECT, MAX_QUERY_BYTES

State = Literal["requested", "deleted", "complete", "refused"]
Reason = Literal["rewritten", "tombstoned", "orphan"]
"""Why an object had to go: live until the erasure rewrote it; dead already and not deleted; or named by no log file."""
Witness = Literal["janitor", "absent"]
"""How the time of a deletion is known: the janitor had deleted it by then; or it was looked for then, and gone."""

MAX_NAMES: Final = 1000
"""So many names of one kind are listed in a record; the count is always whole."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ErasureTarget(_Model):
    """An object that has to be gone.

    Attributes:
        key: Of the data file.
        size_bytes: Its size; ``None``: it was gone before anybody could look.
        row_count: Rows in it that the condition covers; ``None``: it could not be read any more, so it is taken for
            one that has some.
        reason: See :data:`Reason`.
        due_ms: When the janitor may delete it, by the store's clock, unless a lease holds it for longer.
        gone_ms: By when it was gone, by the store's clock; ``None``: it may still be there.
        known_by: How that is known.
    """

    key: str
    size_bytes: int | None
    row_count: int | None
    reason: Reason
    due_ms: int | None = None
    gone_ms: int | None = None
    known_by: Witness | None = None


class DeletedFile(_Model):
    """A live data file that a deletion rewrites, and how many of its rows the condition covers."""

    key: str
    size_bytes: int
    row_count: int | None


class DeletionRun(_Model):
    """A deletion, written down before its commit, so that a crash behind the commit loses no figure.

    Attributes:
        commit_id: Of the commit.
        begun_ms: When it wrote its first data file, by the worker's clock.
        row_count: Rows that it removes.
        files: What it rewrites.
        log_key: The commit's log file, once it is known.
        has_landed: Whether it was committed; ``None``: not known (yet, or any more).
        dialect: As the record's, when it ran: one by an earlier condition says nothing of the rows of this one.
    """

    commit_id: str
    begun_ms: int
    row_count: int
    files: tuple[DeletedFile, ...]
    log_key: str | None = None
    has_landed: bool | None = None
    dialect: Literal["duckdb"] | None = None


class NamedObjects(_Model):
    """How many of something there are, and the names of the first of them."""

    count: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """Return the count of some names, and the first, ascending."""
        return cls(count=len(names), names=tuple(sorted(names)[:MAX_NAMES]))

    def plus(self, other: Self) -> Self:
        """Return both together; the count is a lower bound if one of them has more than it names."""
        names = {*self.names, *other.names}
        count = max(len(names), self.count, other.count)
        return self.model_copy(update={"count": count, "names": tuple(sorted(names)[:MAX_NAMES])})


class NotCovered(_Model):
    """What may hold such rows and was left alone, as it stood when the rows were deleted.

    Attributes:
        quarantine: Batches in quarantine, whole or with bad rows; also those that were there at the request.
        unknown_staged: Objects in staging that are no batches.
        unknown_data: Objects among the data files that are none.
        import_sources: Where imported files were copied from; what lies there is not this table's.
        views: Tables that are fed by this one.
        view_of: The table that feeds this one.
        late: Data files with such rows that were committed after the request.
    """

    quarantine: NamedObjects = NamedObjects()
    unknown_staged: NamedObjects = NamedObjects()
    unknown_data: NamedObjects = NamedObjects()
    import_sources: NamedObjects = NamedObjects()
    views: NamedObjects = NamedObjects()
    view_of: str | None = None
    late: NamedObjects = NamedObjects()


class Erasure(_Model):
    """One erasure.

    Attributes:
        erasure_id: A UUIDv7.
        table: Name of the table.
        condition: SQL; rows for which it is true are erased.
        dialect: Whose SQL it is; ``None``: Spark's, of a release before revision 7. Such a condition is not used.
        requested_by: Who asked, in words.
        note: Why, in words.
        state: See :mod:`icedb_log.erasure.erasures`.
        refusal: Why it is refused.
        requested_ms: By the store's clock. Rows that were accepted by then are covered.
        runs: Deletions that were tried, oldest first.
        deleted_ms: By when the rows were deleted from all that is live, by the store's clock.
        targets: Objects that have to be gone.
        suspects: Those of the targets that the last look at all objects found.
        checked_ms: When all objects were last looked at, by the store's clock.
        completed_ms: When it ended, by the store's clock.
        not_covered: See there.
    """

    format: Literal[1] = 1
    erasure_id: str
    table: str
    condition: str
    dialect: Literal["duckdb"] | None = None
    requested_by: str = ""
    note: str = ""
    state: State = "requested"
    refusal: str | None = None
    requested_ms: int
    runs: tuple[DeletionRun, ...] = ()
    deleted_ms: int | None = None
    targets: tuple[ErasureTarget, ...] = ()
    suspects: tuple[str, ...] = ()
    checked_ms: int | None = None
    completed_ms: int | None = None
    not_covered: NotCovered = Field(default_factory=NotCovered)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self.state in ("complete", "refused")

    @property
    def open_targets(self) -> tuple[ErasureTarget, ...]:
        """Targets that may still be there."""
        return tuple(target for target in self.targets if target.gone_ms is None)

    @property
    def row_count(self) -> int:
        """Rows that were removed from live data files, by all deletions that are known to have landed."""
        return sum(run.row_count for run in self.runs if run.has_landed)

    @property
    def is_row_count_exact(self) -> bool:
        """Whether no deletion is left of which nobody knows whether it landed; else :attr:`row_count` may be low."""
        return all(run.has_landed is not None for run in self.runs)


def mark_gone(erasure: Erasure, keys: Collection[str], *, gone_ms: int, known_by: Witness) -> Erasure:
    """Return a record in which some objects are gone; what is known of them already stays."""
    if erasure.is_closed or not any(target.key in keys for target in erasure.open_targets):
        return erasure
    targets = tuple(
        target.model_copy(update={"gone_ms": gone_ms, "known_by": known_by})
        if target.gone_ms is None and target.key in keys
        else target
        for target in erasure.targets
    )
    return erasure.model_copy(update={"targets": targets})


def encode_erasure(erasure: Erasure) -> bytes:
    """Return the bytes of a record."""
    return erasure.model_dump_json().encode()


def decode_erasure(stored: StoredObject) -> Erasure:
    """Parse a record. Raises UnsupportedFormat."""
    says = (
        "not a record of an erasure that this release understands ({why}); upgrade, or restore it: without it nobody "
        "can tell what was erased"
    )
    return parse_record(Erasure, stored, UnsupportedFormat, says)


PROVES: Final = (
    "Every row that was accepted before requested_at and for which the condition is true was removed from the table.",
    "Every object that is known to have held such rows, or that could not be read, is listed in objects.",
    "Each of them was absent from the object store at its gone_at and at checked_at.",
    "No log file names one of them any more: no statistics of them are left.",
    "At checked_at all data objects were listed, and those that no log file named were searched for such rows.",
    "None of these had any, but for rows that came after requested_at (not_covered.late).",
)

LIMITS: Final = (
    "Rows that were accepted after requested_at are not covered.",
    "Older versions of objects in a versioned bucket, replicas and backups are not covered: see to the bucket's rules.",
    "What readers copied before deleted_at, and logs of services, are not covered.",
    "What not_covered lists was left alone.",
    "A worker that stalled before deleted_at and uploads after checked_at leaves an object that no log file names.",
    "Nobody reads such an object, and the janitor deletes it after the table's orphan age.",
)


def certificate(erasure: Erasure) -> dict[str, Any]:
    """Return the certificate of an erasure, or how far it is, as JSON values. Times are ISO 8601 in UTC."""
    return {
        "format": erasure.format,
        "table": erasure.table,
        "id": erasure.erasure_id,
        "state": erasure.state,
        "condition": erasure.condition,
        "requested_by": erasure.requested_by,
        "note": erasure.note,
        "refusal": erasure.refusal,
        "requested_at": _time(erasure.requested_ms),
        "deleted_at": _time(erasure.deleted_ms),
        "checked_at": _time(erasure.checked_ms),
        "completed_at": _time(erasure.completed_ms),
        "clock": "the object store's",
        "rows_removed": erasure.row_count,
        "rows_removed_is_exact": erasure.is_row_count_exact,
        "commits": [
            {"log_file": run.log_key, "rows_removed": run.row_count, "data_files": len(run.files)}
            for run in erasure.runs
            if run.has_landed
        ],
        "objects": [_object(target) for target in erasure.targets],
        "not_covered": erasure.not_covered.model_dump(mode="json"),
        "proves": list(PROVES) if erasure.state == "complete" else [],
        "limits": list(LIMITS),
    }


def _object(target: ErasureTarget) -> dict[str, Any]:
    return {
        "key": target.key,
        "bytes": target.size_bytes,
        "rows": target.row_count,
        "reason": target.reason,
        "due_at": _time(target.due_ms),
        "gone_at": _time(target.gone_ms),
        "known_by": target.known_by,
    }


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else format_ms(time_ms)


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
