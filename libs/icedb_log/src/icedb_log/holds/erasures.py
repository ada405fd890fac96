"""Records of erasures: what was to be erased, what was done, and which objects have to be gone (E1).

Owns ``_icedb/erasures/<id>.json``. States and who writes them, all by compare-and-set, each write repeatable::

    (nothing) ── put if absent, CLI ──▶ requested ──▶ deleted ──▶ complete     by :mod:`icedb_log.erasure.erasure_run`
                                            └──────▶ refused                   by the same: the condition does not fit

A record is never removed, and one that has ended is never changed: the certificate is made of ``complete``. A search
for the open ones therefore reads each ended one once.
"""

import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clock import Clock, format_ms, new_batch_id, parse_uuid7_ms
from icedb_log.errors import (
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    UnsupportedFormat,
)
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore, StoredObject, limit_reads, list_all, map_each
from icedb_log.store.records import FETCH_THREADS, CasObject, parse_record
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import MAX_QUERY_BYTES

State = Literal["requested", "deleted", "complete", "refused"]

MAX_NAMES: Final = 1000
"""So many names of one kind are listed in a record; the count is always whole."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeletionRun(_Model):
    """A deletion, written down before its commit, so that a crash behind the commit loses no figure.

    Attributes:
        commit_id: Of the commit.
        begun_ms: When it wrote its first data file, by the worker's clock.
        row_count: Rows that it removes.
        file_count: Data files that it rewrites.
        log_key: The commit's log file, once it is known.
        has_landed: Whether it was committed; ``None``: not known (yet, or any more).
    """

    commit_id: str
    begun_ms: int
    row_count: int
    file_count: int
    log_key: str | None = None
    has_landed: bool | None = None


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
        late: Data files that no log file named at the look, and that were committed after it: their rows came
            after the request. They may hold some for which the condition is true.
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
        requested_by: Who asked, in words.
        note: Why, in words.
        state: See :mod:`icedb_log.holds.erasures`.
        refusal: Why it is refused.
        requested_ms: By the store's clock. Rows that were accepted by then are covered.
        runs: Deletions that were tried, oldest first.
        deleted_ms: By when the rows were deleted from all that is live, by the store's clock.
        dead: Data files that the log named as dead then: each has to be gone, and no log file may name it.
        unnamed: Data objects that no log file named then, or at the first listing in which everything else was gone
            (``checked_ms``): each has to be gone, or committed, with rows that came after the request.
        checked_ms: When that listing began, by the store's clock.
        completed_ms: When it ended, by the store's clock.
        not_covered: See there.
    """

    format: Literal[1] = 1
    erasure_id: str
    table: str
    condition: str
    requested_by: str = ""
    note: str = ""
    state: State = "requested"
    refusal: str | None = None
    requested_ms: int
    runs: tuple[DeletionRun, ...] = ()
    deleted_ms: int | None = None
    dead: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    checked_ms: int | None = None
    completed_ms: int | None = None
    not_covered: NotCovered = Field(default_factory=NotCovered)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended: then it is never changed again (E1)."""
        return self.state in ("complete", "refused")

    @property
    def objects(self) -> tuple[str, ...]:
        """Every object that has to be gone, ascending; until it is complete also those that may be committed yet."""
        return tuple(sorted({*self.dead, *self.unnamed}))

    @property
    def row_count(self) -> int:
        """Rows that were removed from live data files, by all deletions that are known to have landed."""
        return sum(run.row_count for run in self.runs if run.has_landed)

    @property
    def is_row_count_exact(self) -> bool:
        """Whether no deletion is left of which nobody knows whether it landed; else :attr:`row_count` may be low."""
        return all(run.has_landed is not None for run in self.runs)


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
    "objects lists every data object of the table that was not live at deleted_at or at checked_at, whatever it held.",
    "The listing of all data objects at completed_at, which began after they had been written down, had none of them.",
    "No log file names one of those that had been live: no statistics of them are left.",
    "What had been published for other engines before deleted_at is gone.",
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
            {"log_file": run.log_key, "rows_removed": run.row_count, "data_files": run.file_count}
            for run in erasure.runs
            if run.has_landed
        ],
        "objects": list(erasure.objects),
        "not_covered": erasure.not_covered.model_dump(mode="json"),
        "proves": list(PROVES) if erasure.state == "complete" else [],
        "limits": list(LIMITS),
    }


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else format_ms(time_ms)


MAX_KNOWN_ENDED: Final = 100_000
"""Records that are known to have ended, of all tables; of more, all are read again."""
MAX_OPEN_ERASURES: Final = 1000
MAX_NOTE_CHARS: Final = 2000


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
    listing = list_all(table.store, table.paths.erasures_prefix)
    if len(listing.objects) >= MAX_OPEN_ERASURES and len(list_open_ids(table)) >= MAX_OPEN_ERASURES:
        raise InvalidRequest(
            f"table {table.name}: {MAX_OPEN_ERASURES} erasures are open; wait until some are complete, or join "
            "conditions with OR"
        )
    erasure = Erasure(
        erasure_id=new_batch_id(clock),
        table=table.name,
        condition=condition,
        requested_by=requested_by,
        note=note,
        requested_ms=listing.store_now_ms,  # E2: before the PUT: whatever was accepted earlier is covered
        not_covered=NotCovered(quarantine=quarantined),
    )
    try:
        # W2: the id is nobody else's: whatever stands there was made of this request.
        return _record(table, erasure.erasure_id).update(lambda found: found or erasure, is_likely_new=True).state
    except CommitOutcomeUnknown as error:
        raise CommitOutcomeUnknown(
            f"table {table.name}: no answer whether erasure {erasure.erasure_id} was written; see `icedb erasure list "
            f"{table.name}` before you ask again"
        ) from error


def _record(table: TableStore, erasure_id: str) -> CasObject[Erasure]:
    return CasObject(table.store, table.paths.erasure_key(erasure_id), decode_erasure, encode_erasure)


def _check_length(paths: TablePaths, condition: str) -> None:
    if not condition.strip() or len(condition.encode()) > MAX_QUERY_BYTES:
        raise InvalidRequest(f"table {paths.name}: give a condition of 1 to {MAX_QUERY_BYTES} bytes")


def read_erasure(table: TableStore, erasure_id: str) -> Erasure:
    """Read one erasure.

    Raises:
        InvalidRequest: Not an id.
        NotFound: No such erasure.
        UnsupportedFormat: The record cannot be read.
    """
    check_erasure_id(erasure_id)
    found = _record(table, erasure_id).read()
    if found is None:
        raise _not_there(table, erasure_id)
    return found


def _not_there(table: TableStore, erasure_id: str) -> NotFound:
    return NotFound(
        f"table {table.name}: there is no erasure {erasure_id}; `icedb erasure list {table.name}` shows what there is"
    )


def find_quarantined(table: TableStore) -> NamedObjects:
    """Return the batches of which something lies in quarantine, with a reason or, after a crash, without."""
    keys = [info.key for info in list_all(table.store, table.paths.quarantine_prefix).objects]
    return NamedObjects.of({key.rpartition("/")[2].partition(".")[0] for key in keys})


def list_open_ids(table: TableStore, *, ended: set[str] | None = None) -> tuple[str, ...]:
    """Return the ids of the erasures that have not ended, oldest first; one that cannot be read counts as open.

    Costs one listing, and a GET for each that is not known to have ended.

    Args:
        table: The table.
        ended: Keys of records that have ended, to be kept from call to call: what is found is added. They may be of
            several tables: no such record ever changes (E1).
    """
    ended = set() if ended is None else ended
    infos = list_all(table.store, table.paths.erasures_prefix).objects
    unknown = [info.key for info in infos if info.key not in ended]
    threads = limit_reads(table.store, FETCH_THREADS)
    states = dict(map_each(partial(_look_at, table.store), unknown, threads=threads, name="icedb-erasures"))
    if len(ended) >= MAX_KNOWN_ENDED:
        ended.clear()
    ended.update(key for key, has_ended in states.items() if has_ended)
    return tuple(_id_of(key) for key, has_ended in states.items() if has_ended is False)


def _look_at(store: ObjectStore, key: str) -> tuple[str, bool | None]:
    """Return a key and whether its erasure has ended; ``None``: it is not there."""
    try:
        return key, decode_erasure(store.get(key)).has_ended
    except NotFound:
        return key, None
    except UnsupportedFormat:
        return key, False  # the run that works on it raises what is wrong with it


def find_oldest_open(table: TableStore, *, ended: set[str] | None = None) -> tuple[int, int | None]:
    """Return how many erasures have not ended, and when the oldest of them was asked for.

    The time is that of its id, by the clock of the requester, unix ms; ``None`` without one. Costs and ``ended`` as
    :func:`list_open_ids`.
    """
    ids = list_open_ids(table, ended=ended)
    times: list[int] = []
    for erasure_id in ids:
        with contextlib.suppress(InvalidRequest):  # not an erasure of ours; it is counted all the same
            times.append(parse_uuid7_ms(erasure_id))
    return len(ids), min(times, default=None)


def list_erasures(table: TableStore, *, limit: int) -> tuple[Erasure, ...]:
    """Read the newest erasures of a table, at most ``limit``, newest first. Costs a listing and a GET for each."""
    infos = list_all(table.store, table.paths.erasures_prefix).objects
    return tuple(read_erasure(table, _id_of(info.key)) for info in infos[::-1][:limit])


def change_erasure(table: TableStore, erasure_id: str, change: Callable[[Erasure], Erasure]) -> Erasure:
    """Change a record that has not ended by compare-and-set; return what it says then.

    ``change`` makes the new record of the current one; it is called again when another process was faster, so it must
    change only what is still to be changed. Returning its argument writes nothing. It is not asked of a record that has
    ended: that one is returned as it is (E1).

    Raises:
        NotFound: There is no such record.
        CommitConflict: Others kept changing it; the next run goes on.
        UnsupportedFormat: The record cannot be read.
        Unavailable: The store did not answer.
    """

    def change_open(current: Erasure | None) -> Erasure:
        if current is None:
            raise _not_there(table, erasure_id)
        return current if _is_final(current) else change(current)

    return _record(table, erasure_id).update(change_open).state


def _is_final(erasure: Erasure) -> bool:
    """Return whether a record stays as it is for ever (E1)."""
    return erasure.has_ended


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
