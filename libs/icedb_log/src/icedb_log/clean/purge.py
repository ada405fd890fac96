"""A purge: everything of a dropped table is deleted, but for what keeps out those who worked on it (rules T3 to T6).

Order: the mark (``purging``: nothing brings the table back), both fences, data files, log files, everything else, once
more from the beginning until a listing finds nothing, the mark again (``purged``: the name is free). When a seal's age
has passed since, all of it once more, for what came late.

Fences and seals stay: a worker that slept through all of it finds that another one has its fence, or that its commit is
sealed. So do registrations of views (a compare-and-set that sleeps must not find them absent again), certificates of
erasures, the audit, and ``table.json``: S3 has no delete on condition, and who deletes it last could delete the
configuration of a table that has just been created.

WARN: data files before log files. Readers of v3 do not know ``table.json``: of half a log they would read rows twice (a
tombstone is gone, what it killed is not) or not at all, and not notice. Of a log without its data files they read
nothing and fail; the log itself goes when all that it names is gone.

What is in the trash, since when, who needs it, and how far its purge is, is read here, too (:func:`read_trash`).
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clean.deletion import CHUNK_KEYS, AuditLog, Deleter, Doomed, RunFacts, open_deleter, sweep_audit
from icedb_log.clean.drop import replace_config
from icedb_log.clean.guards import Hold
from icedb_log.clean.holds import find_claims, find_claims_on_data
from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, Fenced, HaltError, IceDBError, NotFound, UnsupportedFormat
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.keys import ROLES, TablePaths, file_time_ms, publication_id_of
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import MAX_SEAL_BYTES, acquire_fence
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, DeleteFailure, FailedDelete, ObjectInfo, list_pages
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import MAX_CHANGE_ATTEMPTS, kept_changing, load_any_config
from icedb_log.table.table import Table
from icedb_log.table.table_config import Dropped, TableConfig
from icedb_log.units import DAY_MS, MINUTE_MS
from icedb_log.warehouse import DroppedTable, Warehouse

PurgeState = Literal["kept", "waiting", "purging", "purged"]
"""``kept``: not dropped, or its time is not over; ``waiting``: it is over, and somebody needs the table; ``purging``:
the run ended before the purge did; ``purged``: all is gone."""

_NO_ANSWER: Final[tuple[DeleteFailure, ...]] = ("unanswered", "other")


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


class PurgeProgress(BaseModel):
    """What the runs of one purge have done so far: ``_icedb/purge.json``, for people. Nothing is decided by it.

    Times are unix ms by the store's clock. A run that was killed may have deleted some more. Failed is what the last
    run could not delete; ``problem`` are the store's words about the first of it.
    """

    model_config = ConfigDict(frozen=True)

    drop_id: str
    started_ms: int = 0
    updated_ms: int = Field(default=0, exclude=True)
    deleted_count: int = 0
    deleted_bytes: int = 0
    failed_count: int = 0
    problem: str = ""


def read_progress(table: TableStore, *, drop_id: str) -> PurgeProgress | None:
    """Return what the runs of one purge have done; ``None`` if nothing is known. Raises Unavailable."""
    try:
        stored = table.store.get(table.paths.purge_key)
        found = PurgeProgress.model_validate_json(stored.body)
    except (NotFound, ValueError):
        return None
    return found.model_copy(update={"updated_ms": stored.info.modified_ms}) if found.drop_id == drop_id else None


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

    A table that is not dropped is left alone. Any number of runs may overlap, and each may be cut off at any point.

    This host's clock makes ids and bounds the run; it decides about no age. ``check_alive`` is called before each
    chunk, and raises to stop the run; the audit is where everything is written down.

    Raises:
        NotFound: There is no such table, and no trace of one.
        Fenced: Another run has ended this purge meanwhile.
        HaltError: ``table.json`` or a fence cannot be read, or the store's clock tells no ages; a person looks.
        Unavailable: The store did not answer.
    """
    config, info = load_any_config(table)
    mark = config.dropped
    if mark is None:
        return PurgeResult("kept")
    if mark.state != "purging":
        if mark.state == "trash":
            change = _look_at_trash(table, config, mark, info=info)
        else:
            change = _look_at_purged(table, config, mark, info=info, clock=clock)
        if isinstance(change, PurgeResult):
            return change
        if not _begin(
            table, config, mark.model_copy(update={"state": "purging", **change}), etag=info.etag, clock=clock
        ):
            return PurgeResult("kept")
    run = PurgeRun(Table.of(config, table, clock=clock, owner=owner), mark.drop_id, limits=limits or PurgeLimits())
    return run.purge(audit=audit, check_alive=check_alive)


def _look_at_trash(
    table: TableStore, config: TableConfig, mark: Dropped, *, info: ObjectInfo
) -> PurgeResult | dict[str, Any]:
    """Return what becomes of the mark of a table in the trash, or why its time has not come (T3)."""
    if info.modified_ms + mark.keep_ms > table.read_store_clock():  # T1
        return PurgeResult("kept")
    claims = (*find_claims(table), *find_claims_on_data(table, config))
    return PurgeResult("waiting", waits_for=claims) if claims else {"dropped_ms": info.modified_ms}


def _look_at_purged(
    table: TableStore, config: TableConfig, mark: Dropped, *, info: ObjectInfo, clock: Clock
) -> PurgeResult | dict[str, Any]:
    """Return what becomes of the mark of a table that is purged, if what came late is to be looked for (T6)."""
    if mark.is_final:
        # Names of the audit never come again: this may meet a new table.
        done = sweep_audit(table, retention_ms=config.audit_retention_ms, clock=clock)
        return PurgeResult("purged", len(done.keys), failed=done.failed)
    if info.modified_ms + config.seal_age_ms > table.read_store_clock():
        return PurgeResult("purged")
    return {"is_final": True, "purgers": ()}  # F4: nobody of them sleeps any more


def _begin(table: TableStore, config: TableConfig, begun: Dropped, *, etag: str, clock: Clock) -> bool:
    """Say in ``table.json`` that the purge begins; return whether it has: somebody may have been faster."""
    check_store_clock(table.store, table.paths.clock_key, clock=clock)
    replace_config(table, config.model_copy(update={"dropped": begun}), etag=etag)
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
        self._me = f"{table.owner}/{table.clock.new_id()}"
        self._limits = limits
        self._ends_ms = table.clock.monotonic_ms() + limits.run_ms
        self._count = self._size_bytes = 0
        self._failed: list[FailedDelete] = []
        self._seals: set[str] = set()
        self._has_joined = False
        self._is_unanswered = False
        self._before = PurgeProgress(drop_id=drop_id)

    def purge(self, *, audit: AuditLog | None, check_alive: CheckAlive) -> PurgeResult:
        """Take the fences, delete what goes, and say so in the mark. Raises as ``purge_table``."""
        table = self._table
        for role in ROLES:
            # T4: from here on nobody commits who knew the table: what was under way has landed or is sealed, and who
            # comes later has another incarnation in mind.
            acquire_fence(replace(table, owner=f"purge {table.owner}"), role, becomes=self._drop_id)
        now_ms = table.read_store_clock()
        self._before = read_progress(table, drop_id=self._drop_id) or PurgeProgress(
            drop_id=self._drop_id, started_ms=now_ms
        )
        mark = table.config.dropped
        deleter = open_deleter(
            table.watched_by(lambda: self._check_alive(check_alive)),
            audit,
            RunFacts("purge", now_ms, {"keep_ms": mark.keep_ms if mark else None}),
            chunk_keys=self._limits.chunk_keys,
        )
        is_empty = self._delete_all(deleter)
        self._write_progress()
        self._leave(is_empty=is_empty)
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
        """Go once through what lies below a prefix; return whether there was anything to delete.

        What may be deleted late goes first: only for the rest the run has to be registered (T5).
        """
        has_found = False
        for may_be_late in (True, False):
            found = (info for info in self._list(prefix) if _may_be_late(self._table.paths, info.key) is may_be_late)
            while chunk := list(islice(found, self._limits.chunk_keys)):
                has_found = True
                self._delete(deleter, chunk, may_be_late=may_be_late)
                if self._is_over():
                    return True
        return has_found

    def _delete(self, deleter: Deleter, chunk: list[ObjectInfo], *, may_be_late: bool) -> None:
        # WARN: T5: after the listing. A run sleeps before it lists, another one ends the purge, the table is created
        # anew: what this run lists is the new table. While the mark is there, there was none when it was listed.
        self._require_purging()
        if not may_be_late:
            self._join()
        sizes = {info.key: info.size_bytes for info in chunk}
        done = deleter.delete(
            Doomed(info.key, "dropped_table", "its table was dropped", ("trash",), size_bytes=info.size_bytes)
            for info in chunk
        )
        self._count += len(done.keys)
        self._size_bytes += sum(sizes[key] for key in done.keys)
        self._failed += done.failed
        if not may_be_late:
            self._is_unanswered |= any(each.kind in _NO_ANSWER for each in done.failed)
        self._write_progress()

    def _check_alive(self, check_alive: CheckAlive) -> None:
        """Ask whether the run goes on; one that is stopped here has nothing under way, and takes itself out (T5)."""
        try:
            check_alive()
        except IceDBError:
            with contextlib.suppress(IceDBError):
                self._leave(is_empty=False)
            raise

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield what lies below a prefix and goes, page by page: a table may have millions of objects."""
        paths = self._table.paths
        keys = (paths.config_key, paths.purge_key)
        prefixes = (paths.fences_prefix, paths.closed_erasures_prefix, paths.audit_prefix, paths.views_prefix)
        for page in list_pages(self._table.store, prefix, page_size=self._limits.page_keys):
            for info in page.objects:
                stays = info.key in keys or info.key.startswith(prefixes)
                if not (stays or self._is_young_seal(info, now_ms=page.store_now_ms)):
                    yield info

    def _is_young_seal(self, info: ObjectInfo, *, now_ms: int) -> bool:
        """Whether a log file is a seal whose time is not over (F4)."""
        if not info.key.startswith(self._table.paths.log_prefix) or info.size_bytes > MAX_SEAL_BYTES:
            return False
        if info.modified_ms + self._table.config.seal_age_ms <= now_ms:
            return False
        if info.key not in self._seals and self._is_seal(info.key):
            self._seals.add(info.key)
        return info.key in self._seals

    def _is_seal(self, key: str) -> bool:
        try:
            return decode_log_file(key, self._table.store.get(key).body).is_seal
        except (NotFound, CorruptLog, UnsupportedFormat):
            return False  # nobody writes a seal that cannot be read

    def _is_over(self) -> bool:
        return self._table.clock.monotonic_ms() >= self._ends_ms

    # The mark.

    def _require_purging(self) -> None:
        """Look whether the purge still goes on: no table has been created in the place of this one, then."""
        self._require_mine(load_any_config(self._table)[0].dropped)

    def _require_mine(self, mark: Dropped | None) -> Dropped:
        if mark is None or mark.drop_id != self._drop_id or mark.state != "purging":
            raise Fenced(f"table {self._table.name}: another run has ended this purge; this one stops")
        return mark

    def _join(self) -> None:
        """Say in ``table.json`` that this run deletes names that can come again (T5).

        WARN: before the first such delete, and by compare-and-set: a run lists a staged batch and sleeps; another one
        deletes it and ends the purge, the table is created anew, the producer sends the batch again, with the same id,
        and the first run wakes up and deletes what was accepted. A new table waits for runs that did not end (T6).
        """
        if not self._has_joined:
            self._change_mark(lambda mark: _with_purgers(mark, {*mark.purgers, self._me}))
            self._has_joined = True

    def _leave(self, *, is_empty: bool) -> None:
        """Say that this run has ended, and, if all is gone, that the table is purged.

        A run that the store did not answer stays registered: its deletes may still be under way.
        """
        if self._is_unanswered or not (self._has_joined or is_empty):
            return
        change = {"state": "purged"} if is_empty else {}
        self._change_mark(lambda mark: _with_purgers(mark, {*mark.purgers} - {self._me}).model_copy(update=change))

    def _change_mark(self, change: Callable[[Dropped], Dropped]) -> None:
        table = self._table
        wanted: Dropped | None = None
        for _ in range(MAX_CHANGE_ATTEMPTS):
            config, info = load_any_config(table)
            mark = config.dropped
            if mark is not None and mark == wanted:
                return  # W2: what was written landed
            wanted = change(self._require_mine(mark))
            if wanted == mark:
                return
            replace_config(table, config.model_copy(update={"dropped": wanted}), etag=info.etag)
        raise kept_changing(table)

    def _write_progress(self) -> None:
        """Write it down, whatever is there. Never fails: a purge does not stop for it."""
        before = self._before
        done = {
            "deleted_count": before.deleted_count + self._count,
            "deleted_bytes": before.deleted_bytes + self._size_bytes,
            "failed_count": len(self._failed),
            "problem": self._failed[0].reason if self._failed else "",
        }
        with contextlib.suppress(IceDBError):
            body = before.model_copy(update=done).model_dump_json().encode()
            self._table.store.put(self._table.paths.purge_key, body)


def _with_purgers(mark: Dropped, purgers: set[str]) -> Dropped:
    return mark.model_copy(update={"purgers": tuple(sorted(purgers))})


def _may_be_late(paths: TablePaths, key: str) -> bool:
    """Whether it does no harm to delete this name at any time, also below a new table.

    Names of ids that are made afresh never come again. Not so those that a producer or an operator chooses: batches
    (staged, in quarantine), producers' keys, files that are imported in place; nor those that we do not know.
    """
    if key.startswith(paths.data_prefix):
        return file_time_ms(key) is not None
    never_again = (
        paths.log_prefix,
        paths.leases_prefix,
        paths.pins_prefix,
        paths.imports_prefix,
        paths.erasures_prefix,
        paths.publications_prefix,
    )
    if key.startswith(paths.published_prefix):
        return publication_id_of(key) is not None
    return key.startswith(never_again) or key in (paths.clock_key, paths.pressure_key, paths.orphan_record_key)


AUDIT_LOOK_MS: Final = DAY_MS
"""How often a table that is purged is looked at for audit whose retention is over."""


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """A dropped table, and how it stands.

    Attributes:
        table: What its mark says.
        is_due: Whether the time has come from which on it is purged.
        waits_for: Who needs it; asked only in the trash.
        progress: How far its purge is; ``None`` before it begins.
        problem: Why it cannot be told who needs it; empty: it can.
    """

    table: DroppedTable
    is_due: bool
    waits_for: tuple[Hold, ...] = ()
    progress: PurgeProgress | None = None
    problem: str = ""


def read_trash(warehouse: Warehouse) -> tuple[TrashEntry, ...]:
    """Read everything about the tables that are dropped, ascending by name.

    Costs what :meth:`~icedb_log.warehouse.Warehouse.list_dropped` costs, and a few requests for each table found.

    Raises:
        Unavailable: The store did not answer.
    """
    now_ms = read_now_ms(warehouse)
    return tuple(_read_entry(warehouse, table, now_ms=now_ms) for table in warehouse.list_dropped())


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


def _read_entry(warehouse: Warehouse, table: DroppedTable, *, now_ms: int) -> TrashEntry:
    place, mark = warehouse.table(table.name), table.mark
    waits_for: tuple[Hold, ...] = ()
    problem = ""
    if mark.state == "trash":
        try:
            waits_for = (*find_claims(place), *find_claims_on_data(place, table.config))
        except HaltError as error:
            problem = str(error)
    progress = None if mark.state == "trash" else read_progress(place, drop_id=mark.drop_id)
    return TrashEntry(table, table.due_ms <= now_ms, waits_for, progress, problem)
