"""What workers of the stack do, in this process: one task now (``--local``), or all that is due (``icedb work``).

A task takes the arguments, and gives the details, of the services' task of the same name (:mod:`icedb_log.names`). What
is due is found in the store alone. Any number of these may run, beside each other and beside workers of the stack.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from icedb_log.changes.retention import retain_table
from icedb_log.clean.orphans import OrphanPolicy
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasures, preview_erasure
from icedb_log.errors import IceDBError, NotFound, Unavailable, crashes_told
from icedb_log.feed.feeds import FeedRun
from icedb_log.feed.views import is_feed_needed, open_source
from icedb_log.ingest.flush import FlushResult, FlushRun
from icedb_log.ingest.staging import list_staged
from icedb_log.intervals import Backoff, Intervals, Rests
from icedb_log.merge.merge import MergeWatch
from icedb_log.names import (
    INGEST_CHECK_QUERY,
    INGEST_FEED,
    INGEST_FLUSH,
    INGEST_IMPORT,
    JANITOR_ORPHANS,
    JANITOR_PURGE,
    JANITOR_VACUUM,
    MERGE_CHANGE,
    MERGE_COLD,
    MERGE_DROP_PARTITIONS,
    MERGE_ERASE,
    MERGE_MERGE,
    MERGE_RETAIN,
)
from icedb_log.operations import ChangeRequest, ImportRequest, drop_partitions, parse_config
from icedb_log.publish.head import read_publication
from icedb_log.results import Work
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.trash.purge import has_work, purge_table, read_now_ms
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS
from icedb_log.warehouse import RecentTables

from icedb.lake_table import LakeTable
from icedb.session import LakeSession

DUE_EVERY_MS: Final[Mapping[str, int]] = {
    INGEST_FLUSH: SECOND_MS,
    INGEST_FEED: SECOND_MS,
    MERGE_MERGE: 10 * SECOND_MS,
    MERGE_COLD: 10 * MINUTE_MS,
    MERGE_RETAIN: HOUR_MS,
    MERGE_ERASE: MINUTE_MS,
    JANITOR_VACUUM: 30 * SECOND_MS,
    JANITOR_ORPHANS: HOUR_MS,
}
"""How often a worker looks at each table for each task, in the order in which it does them; as the services do."""
PUBLISH_EVERY_MS: Final = 5 * SECOND_MS
PUBLISH: Final = "icedb.iceberg.publish"
"""What the gateway does besides of its own accord: publishing tables of ``iceberg = on-commit``."""
COMMITTING: Final = frozenset({INGEST_FLUSH, INGEST_FEED, PUBLISH})
"""What has a thread of its own in a worker that does not end by itself."""
PURGE_EVERY_MS: Final = 30 * SECOND_MS
TABLES_AGE_MS: Final = 2 * SECOND_MS
"""How old the list of tables may be."""
MAX_ROUNDS: Final = 100
_NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker has done, or could not do.

    Attributes:
        task: The task.
        table: Its table.
        details: What it did.
        problem: Why it did not; it is tried again, later each time.
    """

    task: str
    table: str
    details: Mapping[str, Any]
    problem: IceDBError | None = None


class Worker:
    """Does tasks on the tables of a lake: commits in one thread, everything else in another. Called by one thread.

    What goes wrong at one table is told, whatever it is, and tried again later; the others have their turn.

    Args:
        lake: The lake.
        open_table: Returns one of its tables.
        stops: Asked between units of work; once it says yes, nothing new is begun.
    """

    def __init__(
        self, lake: LakeSession, open_table: Callable[[str], LakeTable], *, stops: Callable[[], bool] = lambda: False
    ) -> None:
        self._lake = lake
        self._open = open_table
        self._ends = threading.Event()
        self._stops_asked = stops
        self._due = {task: Intervals(lake.clock, every_ms) for task, every_ms in DUE_EVERY_MS.items()}
        self._due[PUBLISH] = Intervals(lake.clock, PUBLISH_EVERY_MS)
        self._rests = {task: Rests(lake.clock) for task in DUE_EVERY_MS.keys() - COMMITTING}
        """Of tables at which nothing happens. Not for commits: nothing but these looks says that a batch is there."""
        self._tables = RecentTables(lake.clock, max_age_ms=TABLES_AGE_MS)
        self._purges = Intervals(lake.clock, PURGE_EVERY_MS)
        self._backoff = Backoff(lake.clock)
        self._tasks: Mapping[str, Callable[..., Work]] = {
            INGEST_FLUSH: self._flush,
            INGEST_FEED: self._feed,
            INGEST_IMPORT: self._import,
            INGEST_CHECK_QUERY: self._check_query,
            MERGE_MERGE: self._merge,
            MERGE_COLD: partial(self._merge, cold=True),
            MERGE_CHANGE: self._change,
            MERGE_DROP_PARTITIONS: self._drop_partitions,
            MERGE_RETAIN: self._retain,
            MERGE_ERASE: self._erase,
            JANITOR_VACUUM: self._vacuum,
            JANITOR_ORPHANS: self._sweep_orphans,
            JANITOR_PURGE: self._purge,
            PUBLISH: self._publish,
        }

    def _stops(self) -> bool:
        return self._ends.is_set() or self._stops_asked()

    def run(self, task: str, table: str, arguments: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """Do one task now, and return what the services' task of that name returns.

        Raises:
            IceDBError: As the operation; what was committed by then stays.
        """
        work = self._tasks[task](table, **arguments)
        outcome = "idle" if work.is_idle else "done"
        return {"task": task, "task_id": "", "table": table, "outcome": outcome, **work.details}

    def work(self, tell: Callable[[Done], None], *, until_idle: bool = False, pause_ms: int = 200) -> None:
        """Do what is due on all tables, again and again.

        Unless it ends by itself, commits have a thread of their own: no merge holds them up, however long it is.

        Args:
            tell: Told of each task that did something, and of each that could not; one thread at a time.
            until_idle: Return once a look at everything finds nothing to do, instead of waiting for more.
            pause_ms: How long to rest between two looks.

        Raises:
            Unavailable: ``until_idle``, and the tables cannot be listed.
        """
        if until_idle:
            self._repeat(tell, self._due.keys(), until_idle=True)
            return
        telling = threading.Lock()
        problems: list[BaseException] = []

        def tell_alone(done: Done) -> None:
            with telling:
                tell(done)

        def commit() -> None:
            try:
                self._repeat(tell_alone, COMMITTING, pause_ms=pause_ms)
            except BaseException as error:  # noqa: BLE001 - raised again where the worker was called
                problems.append(error)
                self._ends.set()

        committer = threading.Thread(target=commit, name="icedb-work-commits", daemon=True)
        committer.start()
        try:
            self._repeat(tell_alone, self._due.keys() - COMMITTING, pause_ms=pause_ms)
        finally:
            self._ends.set()
            committer.join()
        if problems:
            raise problems[0]

    def _repeat(
        self, tell: Callable[[Done], None], tasks: Collection[str], *, until_idle: bool = False, pause_ms: int = 0
    ) -> None:
        """Do what is due of some tasks until the worker stops, or until a look finds nothing to do."""
        for count, _ in enumerate(iter(self._stops, True)):
            try:
                did = self._work_once(tell, tasks, is_all_due=until_idle)
            except Unavailable as error:
                if until_idle:
                    raise
                tell(Done("icedb.work", "", {}, error))
                did = False
            if until_idle and (not did or count == MAX_ROUNDS):
                return
            if not until_idle:
                self._lake.clock.sleep_ms(pause_ms)

    def _work_once(self, tell: Callable[[Done], None], tasks: Collection[str], *, is_all_due: bool) -> bool:
        """Do once what is due; return whether anything was done."""
        did = False
        warehouse = self._lake.warehouse
        for table in warehouse.list_tables() if is_all_due else self._tables.list(warehouse):
            for task, due in self._due.items():
                rests = self._rests.get(task)
                is_due = due.is_due(table) and (rests is None or rests.is_due(table))
                if task in tasks and (is_all_due or is_due):
                    due.note(table)
                    did |= self._try(task, table, tell, is_asked=is_all_due)
        if JANITOR_VACUUM in tasks and (is_all_due or self._purges.is_due("")):
            self._purges.note("")
            did |= self._purge_due(tell, is_asked=is_all_due)
        return did

    def _purge_due(self, tell: Callable[[Done], None], *, is_asked: bool) -> bool:
        did = False

        def tell_one(name: str, error: Unavailable) -> None:
            tell(Done(JANITOR_PURGE, name, {}, error))

        try:
            now_ms = read_now_ms(self._lake.warehouse)
            dropped = self._lake.warehouse.list_dropped(on_problem=tell_one)
            due = [each.name for each in dropped if has_work(each, now_ms=now_ms)]
        except IceDBError as error:  # the tables that are not dropped have had their turn
            tell(Done(JANITOR_PURGE, "", {}, error))
            return False
        for name in due:
            did |= self._try(JANITOR_PURGE, name, tell, is_asked=is_asked)
        return did

    def _try(self, task: str, table: str, tell: Callable[[Done], None], *, is_asked: bool) -> bool:
        key = f"{task}:{table}"
        if self._stops() or not (is_asked or self._backoff.is_due(key)):
            return False
        try:
            with crashes_told(f"table {table}: {task}"):
                work = self._tasks[task](table)
        except NotFound:
            self._tables.forget(table)  # dropped meanwhile
            return False
        except IceDBError as error:  # of this table alone: the others have their turn
            self._backoff.record_failure(key)
            tell(Done(task, table, {}, error))
            return False
        self._backoff.record_success(key)
        if work.is_idle:
            if task in self._rests:
                self._rests[task].note(table, "nothing was done")
            return False
        for rests in self._rests.values():
            rests.note(table, None)
        tell(Done(task, table, work.details))
        return True

    def _flush(self, table: str) -> Work:
        place = self._open(table)
        results: list[FlushResult] = []
        has_more = bool(list_staged(place.place, limit=1).batches)
        while has_more and not (results and self._stops()):
            results.append(place.flush(is_staged=True))
            has_more = results[-1].has_more and bool(results[-1].committed_key)
        return Work.of(FlushRun(results))

    def _feed(self, table: str) -> Work:
        place = self._open(table)
        view = place.open()
        is_needed = view.config.view_of is not None and is_feed_needed(view, open_source(view))
        return Work.of(FeedRun([place.feed()] if is_needed else []))

    def _merge(self, table: str, *, full: bool = False, cold: bool = False) -> Work:
        watch = MergeWatch(has_time=lambda: not self._stops())
        return Work.of(replace(self._open(table).merge(full=full, cold=cold, watch=watch), has_more=False))

    def _change(
        self,
        table: str,
        *,
        kind: str,
        sql: str,
        partitions: Sequence[str] | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> Work:
        request = ChangeRequest.parse(
            table, kind=kind, sql=sql, partitions=partitions, dry_run=dry_run, request_id=request_id
        )
        with self._opened(table, self._open(table).merging) as opened:
            return request.describe(request.run(opened, self._lake.engine.changer))

    def _drop_partitions(self, table: str, *, globs: Sequence[str], may_match_all: bool = False) -> Work:
        with self._opened(table, self._open(table).merging) as opened:
            return Work.of(drop_partitions(opened, globs, may_match_all=may_match_all))

    def _retain(self, table: str, *, force: bool = False) -> Work:
        if self._open(table).open().config.retention_ms is None:
            return Work(is_idle=True)
        with self._opened(table, self._open(table).merging) as opened:
            return Work.of(retain_table(opened, force=force))

    def _erase(self, table: str, *, preview: str | None = None) -> Work:
        place, changer = self._open(table), self._lake.engine.changer
        if preview is not None:
            found = preview_erasure(place.open(), changer, preview)
            return Work(is_idle=not found["rows"], details=found)
        result = advance_erasures(place.place, changer, lambda _: self._opened(table, place.merging))
        if result.problems:
            raise result.problems[0]
        return Work.of(result)

    def _vacuum(self, table: str) -> Work:
        return Work.of(self._open(table).vacuum())

    def _sweep_orphans(self, table: str, *, older_than_ms: int | None = None, force: bool = False) -> Work:
        policy = OrphanPolicy(older_than_ms, is_forced=force)
        return Work.of(self._open(table).sweep_orphans(policy))

    def _purge(self, table: str) -> Work:
        lake = self._lake
        return Work.of(purge_table(lake.warehouse.table(table), clock=lake.clock, owner=lake.owner))

    def _publish(self, table: str) -> Work:
        place = self._open(table)
        if place.open().config.iceberg != "on-commit":
            return Work(is_idle=True)
        before = read_publication(place.place)
        uri = place.publish()
        is_same = before is not None and uri.endswith(before.metadata_key)
        return Work(is_idle=is_same, details={"metadata": uri})

    def _check_query(self, table: str, *, config: Mapping[str, Any], schema: Mapping[str, str] | None = None) -> Work:
        found = self._lake.check_queries(parse_config(table, config), schema)
        return Work(is_idle=False, details={"schema": dict(found)})

    def _import(self, table: str, **request: Any) -> Work:
        place, s3 = self._open(table), self._lake.client.settings.s3 or S3Options()
        _, work = ImportRequest(**request).run(
            place.open(),
            self._lake.engine.importer,
            open_store=lambda url: StoreSettings(url, s3).open().store,
            allowed=["s3://", "file:///"],  # whoever runs this may read what it may read
            hold=lambda: place.flushing,
        )
        return work

    @contextmanager
    def _opened(self, table: str, lock: AbstractContextManager[Any]) -> Iterator[Table]:
        with lock:
            yield self._open(table).open()
