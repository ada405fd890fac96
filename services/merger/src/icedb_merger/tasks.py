"""The tasks of the merger: which table is merged, changed or erased from when. What and how, is the library's."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cachetools import LRUCache
from celery import Celery
from icedb_log.changes.frequent_paths import promote_by_sample
from icedb_log.changes.retention import retain_table
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasures, preview_erasure
from icedb_log.errors import IceDBError
from icedb_log.holds.erasures import Erasure, list_open_ids
from icedb_log.intervals import Intervals, Rests
from icedb_log.jobs import CheckAlive
from icedb_log.keys import TablePaths
from icedb_log.merge.merge import MergeResult, MergeWatch, merge_table
from icedb_log.merge.merge_plan import COLD_LIMITS, HOT_LIMITS, Lane, MergeIndex, MergeLimits, MergeOptions, plan_merge
from icedb_log.names import (
    INGEST_FLUSH,
    MERGE_CHANGE,
    MERGE_COLD,
    MERGE_DROP_PARTITIONS,
    MERGE_ERASE,
    MERGE_MERGE,
    MERGE_RETAIN,
    MERGE_SWEEP,
)
from icedb_log.operations import ChangeRequest, drop_partitions
from icedb_log.results import Work
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs
from icedb_service.logs import get_logger
from icedb_service.redis_clients import LockBusy
from icedb_service.tasks import define_task
from icedb_service.worker import WorkerContext, sweep_tables

from icedb_merger.metrics import LaneLabel, MergeMetrics, TurnEnd
from icedb_merger.settings import MergerSettings

if TYPE_CHECKING:
    from icedb_engine.jobs.engine import JobEngine

MAX_INDEXES: Final = 64
"""Tables whose index is kept; one of 100,000 data files takes some 30 MB."""
_ALL_TABLES: Final = ""


class MergeTasks:
    """The work of the tasks, in the process that runs them. Not thread-safe: that process runs one at a time."""

    def __init__(self, context: "WorkerContext[JobEngine]", *, settings: MergerSettings, metrics: MergeMetrics) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._indexes: LRUCache[str, MergeIndex] = LRUCache(MAX_INDEXES)
        self._rests: dict[Lane, Rests] = {
            "hot": context.make_rests(MERGE_MERGE),
            "cold": context.make_rests(MERGE_COLD),
        }
        self._erasure_rests = context.make_rests(MERGE_ERASE)
        self._cold = Intervals(context.clock, settings.merge_cold_interval_ms)
        self._erasures = Intervals(context.clock, settings.merge_erase_interval_ms)
        self._ended_erasures: set[str] = set()
        self._retention = Intervals(context.clock, settings.merge_retain_interval_ms)

    def merge(self, table: str, full: bool = False) -> Work:  # noqa: FBT001, FBT002 - the message's own form
        """Give a table its turn in the hot lane, or merge it in full; what is left goes to the end of the queue.

        Delivery: woken by ingest, by the sweep, by itself and by the CLI, any number of times. A run that is lost
        leaves the table as its last commit left it. Two at once exclude each other by the lock, and if that fails by
        the fence. A full merge does not wake itself: who asked for it asks again while the result says ``has_more``.
        """
        if full:
            return self._take_turn(table, "full")
        work = self._take_turn(table, "hot")
        if work.details["has_more"]:
            self._context.wakeups.try_wake(MERGE_MERGE, table)
        return work

    def cold(self, table: str) -> Work:
        """Give a table its turn in the cold lane: partitions that rest are merged as far as possible.

        Delivery: as :meth:`merge`.
        """
        work = self._take_turn(table, "cold")
        if work.details["has_more"]:
            self._context.wakeups.try_wake(MERGE_COLD, table)
        return work

    def change(
        self,
        table: str,
        kind: str,
        sql: str,
        partitions: list[str] | None = None,
        dry_run: bool = False,  # noqa: FBT001, FBT002 - the message's own form
        *,
        request_id: str | None = None,
    ) -> Work:
        """Delete rows by a condition, or rewrite partitions by a query, in one commit.

        Delivery: sent by the CLI, which waits for the result. A run that is lost has changed everything or nothing.
        One that is delivered or sent again under its ``request_id`` says what the first run did. Without one a deletion
        that is repeated finds no rows, and a rewrite that is repeated runs its query on its own result.

        Args:
            table: Its name.
            kind: ``delete`` or ``rewrite``.
            sql: The condition, or the query over ``_rows``.
            partitions: For a rewrite, partition filters as text; all must hold.
            dry_run: Only say what would be touched; takes no lock.
            request_id: A UUIDv7 of the sender's.
        """
        request = ChangeRequest.parse(
            table, kind=kind, sql=sql, partitions=partitions, dry_run=dry_run, request_id=request_id
        )
        with nullcontext(self._context.open(table)) if dry_run else self._context.open_locked(table) as opened:
            result = request.run(opened, self._context.engine.changer)
        if not result.is_repeated:
            self._metrics.record_change(request.kind, result)
        return request.describe(result)

    def drop_partitions(
        self,
        table: str,
        globs: list[str],
        may_match_all: bool = False,  # noqa: FBT001, FBT002 - the message's own form
    ) -> Work:
        """Remove the partitions that some globs mean, in one commit.

        Delivery: sent by the CLI, once. A run that is lost has removed everything or nothing; one that is repeated
        finds no partition and is refused.
        """
        with self._context.open_locked(table) as opened:
            removal = drop_partitions(opened, globs, may_match_all=may_match_all)
        self._metrics.record_removal(removal)
        return Work.of(removal)

    def retain(self, table: str, force: bool = False) -> Work:  # noqa: FBT001, FBT002 - the message's own form
        """Remove the partitions of a table whose retention has passed, in one commit.

        Delivery: woken by the sweep and sent by the CLI, any number of times. A run that is lost is made good by a
        later one; one that is repeated finds nothing. What only a person may allow is refused unless ``force``.
        """
        try:
            with self._context.open_locked(table) as opened:
                result = retain_table(opened, force=force)
        except LockBusy:
            self._retention.forget(table)
            raise
        self._metrics.record_retention(table, result)
        return Work.of(result)

    def erase(self, table: str, preview: str | None = None) -> Work:
        """Carry all open erasures of a table on, as far as they go now; or say what one would remove.

        Delivery: woken by the CLI, by the janitor and by the sweep, any number of times. A run that is lost or cut
        short is gone on with by the next; two at once come to the same end, and the lock saves the work.

        Args:
            table: Its name.
            preview: A condition: nothing is erased, the result says what would be deleted. Outcome ``refused`` with the
                reason if it does not fit the table.
        """
        context = self._context
        changer = context.engine.changer
        if preview is not None:
            found = preview_erasure(context.open(table), changer, preview)
            return Work(is_idle=not found["rows"], details=found)
        self._erasure_rests.note(table, None)  # what is asked for now is gone on with by each sweep

        def open_table(is_rewrite: bool) -> AbstractContextManager[Table]:  # noqa: FBT001 - as it is asked
            # The rewrite competes with merges; what follows only looks.
            return context.open_locked(table) if is_rewrite else nullcontext(context.open(table))

        result = advance_erasures(
            context.warehouse.table(table),
            changer,
            open_table,
            ended=self._ended_erasures,
            on_problem=_warn_of_erasure,
            on_step=self._account_erasure,
        )
        if any(each.waits_for == "flush" for each in result.progress):
            context.wakeups.try_wake(INGEST_FLUSH, table)
        if result.problems:
            raise result.problems[0]
        return Work.of(result)

    def sweep(self) -> Work:
        """Wake what each table has to do: hot merges; now and then cold ones, its retention and its open erasures.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        sweep = partial(sweep_tables, self._context)
        merges = sweep(task=MERGE_MERGE, is_needed=lambda paths: self._needs_merge(paths, "hot"))
        cold = sweep(
            task=MERGE_COLD,
            is_needed=lambda paths: self._cold.look(paths.name, lambda: self._needs_merge(paths, "cold")),
        )
        retention = sweep(
            task=MERGE_RETAIN,
            is_needed=lambda paths: self._retention.look(paths.name, lambda: self._has_retention(paths)),
        )
        erasure_count = 0
        if self._erasures.is_due(_ALL_TABLES):
            erasure_count = sweep(task=MERGE_ERASE, is_needed=self._has_erasures).details["woken"]
            self._erasures.note(_ALL_TABLES)
        return Work(
            is_idle=merges.is_idle and cold.is_idle and retention.is_idle and not erasure_count,
            details={
                **merges.details,
                "woken_cold": cold.details["woken"],
                "woken_retention": retention.details["woken"],
                "woken_erasures": erasure_count,
            },
        )

    def _needs_merge(self, paths: TablePaths, lane: Lane) -> bool:
        """Say whether a lane would do something now; a table whose log stays as it is, is asked less often.

        Costs one listing and the log files that are new.
        """
        rests = self._rests[lane]
        if not rests.is_due(paths.name):
            return False
        table = self._context.open(paths.name)
        log = table.read_log()
        is_empty = plan_merge(self._index_of(table), log, MergeOptions(lane)).is_empty
        rests.note(paths.name, hash(tuple(file.key for file in log.files)) if is_empty else None)
        return not is_empty

    def _has_retention(self, paths: TablePaths) -> bool:
        return read_table_config(self._context.warehouse.table(paths.name)).retention_ms is not None

    def _has_erasures(self, paths: TablePaths) -> bool:
        if not self._erasure_rests.is_due(paths.name):
            return False
        is_open = bool(list_open_ids(TableStore(self._context.warehouse.store, paths), ended=self._ended_erasures))
        self._erasure_rests.note(paths.name, None if is_open else "none is open")
        return is_open

    def _index_of(self, table: Table) -> MergeIndex:
        """Return what is known of a table's files; nothing if its configuration has changed."""
        index = self._indexes.get(table.name)
        if index is None or index.config != table.config:
            index = self._indexes[table.name] = MergeIndex(table.paths, table.config)
        return index

    def _take_turn(self, table: str, label: LaneLabel) -> Work:
        """Merge a table until nothing is worth it, or a bound of the turn is met."""
        self._rests["cold" if label == "cold" else "hot"].note(table, None)  # a turn that fails is made good by a sweep
        end: TurnEnd = "stopped"
        try:
            with self._context.lock(table) as lock:
                end, total = self._merge_for_a_turn(table, label, lock.check_alive)
        finally:
            # Commits that have landed stay, and are counted, whatever stopped the turn.
            self._metrics.turns.labels(label, end).inc()
        return Work(is_idle=total.commit_count == 0, details={**total.details(), "has_more": end != "done"})

    def _merge_for_a_turn(self, name: str, label: LaneLabel, check_alive: CheckAlive) -> tuple[TurnEnd, MergeResult]:
        clock, limits = self._context.clock, self._limits(label)
        started_ms = clock.monotonic_ms()

        def has_time() -> bool:
            return clock.monotonic_ms() - started_ms < self._settings.merge_turn_ms

        watch = MergeWatch(has_time, self._metrics.record, self._metrics.record_check)
        total = MergeResult()
        while True:
            check_alive()
            table = self._context.open(name, check_alive=check_alive)
            left = replace(
                limits,
                max_bytes=max(1, limits.max_bytes - total.input_bytes),
                max_files=max(1, limits.max_files - total.input_count),
            )
            options = MergeOptions(lane="cold" if label == "cold" else "hot", full=label == "full", limits=left)
            merger = self._context.engine.merger
            if not total.commit_count:  # once a turn
                table = promote_by_sample(table, merger)
            index = self._index_of(table)
            try:
                result = merge_table(table, merger, options=options, watch=watch, index=index)
            except BaseException:
                self._indexes.pop(name, None)  # nobody knows whether it is whole; the next run makes another
                raise
            total = total.plus(result)
            # A commit may have made a larger tier worth a merge: only a run without one says "nothing left".
            if result.committed_key is None:
                return "done", total
            if not has_time():
                return "time", total
            if total.input_bytes >= limits.max_bytes or total.input_count >= limits.max_files:
                return "amount", total

    def _limits(self, label: LaneLabel) -> MergeLimits:
        lane = HOT_LIMITS if label == "hot" else COLD_LIMITS
        return replace(lane, commit_bytes=self._settings.merge_commit_bytes)

    def _account_erasure(self, before: Erasure, erasure: Erasure) -> None:
        if erasure.state == before.state:
            return
        # Never the condition, nor keys: they may hold what was to be erased.
        get_logger().info(
            "erasure_advanced",
            erasure_id=erasure.erasure_id,
            state=erasure.state,
            rows=erasure.row_count,
            objects=len(erasure.objects),
        )
        if erasure.has_ended:
            self._metrics.erasures.labels(erasure.state).inc()


def _warn_of_erasure(erasure_id: str, error: IceDBError) -> None:
    if not isinstance(error, LockBusy):
        get_logger().warning(
            "erasure_not_advanced", erasure_id=erasure_id, error=type(error).__name__, mitigation="next run"
        )


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: MergerSettings, metrics: MergeMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = MergeTasks(context, settings=settings, metrics=metrics)
    define = partial(define_task, app, context)
    define(MERGE_MERGE, tasks.merge, needs=needs(Verb.MAINTAIN, "full"))
    define(MERGE_COLD, tasks.cold)
    define(MERGE_SWEEP, tasks.sweep, needs_engine=False)
    define(MERGE_CHANGE, tasks.change, needs=needs(Verb.ERASE))
    define(MERGE_DROP_PARTITIONS, tasks.drop_partitions, needs_engine=False, needs=needs(Verb.ERASE))
    define(MERGE_RETAIN, tasks.retain, needs_engine=False, needs=needs(Verb.ERASE, "force"))
    # Without arguments it carries on what stands in the store, as the sweep does.
    define(MERGE_ERASE, tasks.erase, needs=needs(Verb.ERASE, "preview"))
