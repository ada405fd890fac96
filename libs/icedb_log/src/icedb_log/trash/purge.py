"""A purge: everything of a dropped table is deleted, but for its mark (rules T3 to T5).

Order: the mark (``purging``: nothing brings the table back), data files, log files, everything else, once more from the
beginning until a listing finds nothing, the mark again (``purged``: the name is free). When a seal's age has passed
since, all of it once more, for what came late.

The next table of the name lies under another prefix (T4): nothing here can meet it, however long a run sleeps, and nor
can those who worked on the old one. So a purge takes no fence and keeps no seal. What stays: ``table.json``, which is
never deleted, registrations of views (V3), certificates of erasures, and the audit until its retention is over.

WARN: data files before log files. Readers of v3 do not know ``table.json``: of half a log they would read rows twice (a
tombstone is gone, what it killed is not) or not at all, and not notice. Of a log without its data files they read
nothing and fail; the log itself goes when all that it names is gone.

What is in the trash, since when, and who needs it, is read here, too (:func:`read_trash`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

from icedb_log.clean.deletion import (
    CHUNK_KEYS,
    AuditLog,
    DeleteCandidate,
    Deleted,
    Deleter,
    RunFacts,
    open_deleter,
    sweep_audit,
)
from icedb_log.clean.holds import find_claims, find_claims_on_data
from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import HaltError, InvariantViolated
from icedb_log.holds.guards import Hold
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, FailedDelete, ObjectInfo, list_pages
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import change_config, load_any_config
from icedb_log.table.table_config import Dropped, TableConfig
from icedb_log.units import DAY_MS, MINUTE_MS
from icedb_log.warehouse import DroppedTable, Warehouse

PurgeState = Literal["kept", "waiting", "purging", "purged"]
"""``kept``: not dropped, or its time is not over; ``waiting``: it is over, and somebody needs the table; ``purging``:
the run ended before the purge did; ``purged``: all is gone."""


@dataclass(frozen=True, slots=True)
class PurgeLimits:
    """Bounds of one run.

    Attributes:
        run_ms: After this no new chunk is begun; the next run goes on.
        chunk_keys: Objects deleted between two looks at the lock, and held in memory.
        page_keys: Keys of one page of a listing.
    """

    run_ms: int = 5 * MINUTE_MS
    chunk_keys: int = CHUNK_KEYS
    page_keys: int = MAX_KEYS_PER_PAGE


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """How the table stands now, what one run did, and who needs the table. The next run tries again what failed."""

    state: PurgeState
    deleted_count: int = 0
    deleted_bytes: int = 0
    failed: tuple[FailedDelete, ...] = ()
    waits_for: tuple[Hold, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing was deleted."""
        return not self.deleted_count

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task."""
        return {
            "state": self.state,
            "deleted": self.deleted_count,
            "deleted_bytes": self.deleted_bytes,
            "failed": len(self.failed),
            "waits_for": [f"{hold.kind} {hold.held_by}" for hold in self.waits_for],
        }


def purge_table(
    table: TableStore,
    *,
    clock: Clock,
    owner: str,
    audit: AuditLog | None = None,
    check_alive: CheckAlive = never_stop,
    limits: PurgeLimits | None = None,
) -> PurgeResult:
    """Purge a table whose time in the trash is over, or go on with a purge that has begun. Idempotent.

    So are the earlier tables of its name, of which something may have come late. A table that is not dropped is left
    alone. Any number of runs may overlap, and each may be cut off at any point.

    This host's clock makes ids and bounds the run; it decides about no age. ``check_alive`` is called before each
    chunk, and raises to stop the run; the audit is where everything is written down.

    Raises:
        NotFound: There is no such table, and no trace of one.
        HaltError: ``table.json`` cannot be read, or the store's clock tells no ages; a person looks.
        Unavailable: The store did not answer.
    """
    limits = limits or PurgeLimits()
    places = (*(table.numbered(number) for number in range(1, table.paths.number)), table)
    done = [
        _purge_one(place, clock=clock, owner=owner, audit=audit, check_alive=check_alive, limits=limits)
        for place in places
    ]
    return replace(
        done[-1],
        deleted_count=sum(each.deleted_count for each in done),
        deleted_bytes=sum(each.deleted_bytes for each in done),
        failed=tuple(failure for each in done for failure in each.failed),
    )


def _purge_one(
    table: TableStore,
    *,
    clock: Clock,
    owner: str,
    audit: AuditLog | None,
    check_alive: CheckAlive,
    limits: PurgeLimits,
) -> PurgeResult:
    config, info = load_any_config(table)
    mark = config.dropped
    if mark is None:
        return PurgeResult("kept")
    if mark.state == "trash":
        begun = _look_at_trash(table, config, mark, info=info)
        if isinstance(begun, PurgeResult):
            return begun
        if not _begin(table, config, begun, etag=info.etag, clock=clock):
            return PurgeResult("kept")
    elif mark.state == "purged" and (mark.is_final or info.modified_ms + config.seal_age_ms > table.read_store_clock()):
        done = sweep_audit(table, retention_ms=config.audit_retention_ms, clock=clock) if mark.is_final else Deleted()
        return PurgeResult("purged", len(done.keys), failed=done.failed)
    run = PurgeRun(Table.of(config, table, clock=clock, owner=owner), mark.drop_id, limits=limits)
    return run.purge(audit=audit, check_alive=check_alive)


def _look_at_trash(table: TableStore, config: TableConfig, mark: Dropped, *, info: ObjectInfo) -> PurgeResult | Dropped:
    """Return what becomes of the mark of a table in the trash, or why its time has not come (T3)."""
    if info.modified_ms + mark.keep_ms > table.read_store_clock():  # T1
        return PurgeResult("kept")
    claims = (*find_claims(table), *find_claims_on_data(table, config))
    if claims:
        return PurgeResult("waiting", waits_for=claims)
    return mark.model_copy(update={"state": "purging", "dropped_ms": info.modified_ms})


def _begin(table: TableStore, config: TableConfig, begun: Dropped, *, etag: str, clock: Clock) -> bool:
    """Say in ``table.json`` that the purge begins; return whether it has: somebody may have been faster."""
    check_store_clock(table.store, table.paths.clock_key, clock=clock)

    def begin(now: TableConfig, info: ObjectInfo) -> TableConfig:
        # T3: whoever needs it was looked for in the state with this ETag, and in no other one.
        return config.model_copy(update={"dropped": begun}) if info.etag == etag else now

    change_config(table, begin)
    found = load_any_config(table)[0].dropped
    return found is not None and found.drop_id == begun.drop_id and found.state == "purging"


class PurgeRun:
    """One run of one purge. For one thread, once.

    Args:
        table: The table, with its configuration as it was.
        drop_id: Of the drop.
        limits: Bounds of the run.
    """

    def __init__(self, table: Table, drop_id: str, *, limits: PurgeLimits) -> None:
        self._table = table
        self._drop_id = drop_id
        self._limits = limits
        self._ends_ms = table.clock.monotonic_ms() + limits.run_ms
        self._count = self._size_bytes = 0
        self._failed: list[FailedDelete] = []
        mark = table.config.dropped
        self._is_last = mark is not None and mark.state == "purged"

    def purge(self, *, audit: AuditLog | None, check_alive: CheckAlive) -> PurgeResult:
        """Delete what goes, and say so in the mark. Raises as ``purge_table``."""
        table = self._table
        now_ms = table.read_store_clock()
        mark = table.config.dropped
        deleter = open_deleter(
            table.watched_by(check_alive),
            audit,
            RunFacts("purge", now_ms, {"keep_ms": mark.keep_ms if mark else None}),
            chunk_keys=self._limits.chunk_keys,
        )
        is_empty = self._delete_all(deleter)
        if is_empty:
            self._end()
        return PurgeResult("purged" if is_empty else "purging", self._count, self._size_bytes, tuple(self._failed))

    def _delete_all(self, deleter: Deleter) -> bool:
        """Delete everything that goes; return whether a listing has found nothing any more."""
        paths = self._table.paths
        for prefix in (paths.data_prefix, f"{paths.prefix}/_log", f"{paths.prefix}/"):
            while self._delete_below(deleter, prefix):
                if self._failed or self._is_over():
                    return False
        return True

    def _delete_below(self, deleter: Deleter, prefix: str) -> bool:
        """Go once through what lies below a prefix; return whether there was anything to delete."""
        found, has_found = self._list(prefix), False
        while chunk := list(islice(found, self._limits.chunk_keys)):
            has_found = True
            self._delete(deleter, chunk)
            if self._is_over():
                break
        return has_found

    def _delete(self, deleter: Deleter, chunk: list[ObjectInfo]) -> None:
        sizes = {info.key: info.size_bytes for info in chunk}
        done = deleter.delete(
            DeleteCandidate(info.key, "dropped_table", "its table was dropped", ("trash",), size_bytes=info.size_bytes)
            for info in chunk
        )
        self._count += len(done.keys)
        self._size_bytes += sum(sizes[key] for key in done.keys)
        self._failed += done.failed

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield what lies below a prefix and goes, page by page: a table may have millions of objects."""
        paths = self._table.paths
        prefixes = (paths.erasures_prefix, paths.audit_prefix, paths.views_prefix)
        for page in list_pages(self._table.store, prefix, page_size=self._limits.page_keys):
            yield from (
                info for info in page.objects if info.key != paths.config_key and not info.key.startswith(prefixes)
            )

    def _is_over(self) -> bool:
        return self._table.clock.monotonic_ms() >= self._ends_ms

    def _end(self) -> None:
        """Say in the mark that the table is purged; after a seal's age, that what came late is gone, too (T5)."""
        table = self._table

        def end(config: TableConfig, _info: ObjectInfo) -> TableConfig:
            mark = config.dropped
            if mark is None or mark.drop_id != self._drop_id:
                raise InvariantViolated(f"table {table.name}: {table.paths.config_key} is no mark of its purge (T1)")
            if mark.state == "purged" and (mark.is_final or not self._is_last):
                return config
            return config.model_copy(update={"dropped": mark.model_copy(update=_after(mark))})

        change_config(table, end)


def _after(mark: Dropped) -> dict[str, Any]:
    """Return what a mark says once a listing has found nothing below it."""
    return {"is_final": True} if mark.state == "purged" else {"state": "purged"}


AUDIT_LOOK_MS: Final = DAY_MS
"""How often a table that is purged is looked at for audit whose retention is over."""


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """A dropped table, and how it stands.

    Attributes:
        table: What its mark says.
        is_due: Whether the time has come from which on it is purged.
        waits_for: Who needs it; asked only in the trash.
        problem: Why it cannot be told who needs it; empty: it can.
    """

    table: DroppedTable
    is_due: bool
    waits_for: tuple[Hold, ...] = ()
    problem: str = ""


def read_trash(warehouse: Warehouse) -> tuple[TrashEntry, ...]:
    """Read everything about the tables that are dropped, ascending by name.

    Costs what :meth:`~icedb_log.warehouse.Warehouse.list_dropped` costs, and a few requests for each table found.

    Raises:
        Unavailable: The store did not answer.
    """
    now_ms = read_now_ms(warehouse)
    return tuple(_read_entry(table, now_ms=now_ms) for table in warehouse.list_dropped())


def read_now_ms(warehouse: Warehouse) -> int:
    """Return the store's clock, unix ms. Costs one LIST of one key. Raises Unavailable."""
    return warehouse.store.list_page(warehouse.root, limit=1).store_now_ms


def has_work(table: DroppedTable, *, now_ms: int) -> bool:
    """Whether a purge has something to do for a dropped table, as far as its mark tells. Pure."""
    if table.mark.state == "purging":
        return True
    if table.mark.state == "trash":
        return table.due_ms <= now_ms
    return not table.mark.is_final and table.modified_ms + table.config.seal_age_ms <= now_ms


def _read_entry(table: DroppedTable, *, now_ms: int) -> TrashEntry:
    place, mark = table.place, table.mark
    waits_for: tuple[Hold, ...] = ()
    problem = ""
    if mark.state == "trash":
        try:
            waits_for = (*find_claims(place), *find_claims_on_data(place, table.config))
        except HaltError as error:
            problem = str(error)
    return TrashEntry(table, table.due_ms <= now_ms, waits_for, problem)
