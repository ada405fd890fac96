"""The tasks of the merger: which table is merged when. What and how, is :mod:`icedb_log.merge.merge`'s business."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from cachetools import LRUCache
from celery import Celery
from icedb_log.clock import Clock
from icedb_log.jobs import CheckAlive, GroupMerger, never_stop
from icedb_log.keys import TablePaths
from icedb_log.merge.merge import MergeOptions, MergeResult, MergeWatch, merge_table
from icedb_log.merge.merge_plan import COLD_LIMITS, HOT_LIMITS, Lane, MergeIndex, MergeLimits, plan_merge
from icedb_log.names import MERGE_COLD, MERGE_MERGE, MERGE_RETAIN, MERGE_SWEEP
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs_if
from icedb_service.readers import LogReaders
from icedb_service.redis_clients import TableLock
from icedb_service.runs import Work
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import Engine, WorkerContext, sweep_tables

from icedb_merger.changes import RetentionSchedule, register_change_tasks, register_partition_tasks
from icedb_merger.erasures import ErasureSchedule, register_erasure_tasks
from icedb_merger.metrics import LaneLabel, MergeMetrics, TurnEnd
from icedb_merger.settings import MergerSettings

MAX_INDEXES: Final = 64
"""Tables whose index is kept; one of 100,000 data files takes some 60 MB."""


@dataclass(frozen=True, slots=True)
class IndexedTable:
    """A table whose log this worker knows.

    Attributes:
        table: Its reader reads what is new.
        index: Is brought up to date by each plan.
    """

    table: Table
    index: MergeIndex


class TableLogs:
    """Keeps what was used last. Not thread-safe: a worker's process runs one task at a time.

    Args:
        store: The object store.
        clock: Given to each reader.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._readers = LogReaders(clock)
        self._indexes: LRUCache[str, MergeIndex] = LRUCache(MAX_INDEXES)

    def open(self, paths: TablePaths, *, owner: str = "", check_alive: CheckAlive = never_stop) -> IndexedTable:
        """Open a table with what is known of it; with a new index if its configuration has changed.

        Raises:
            NotFound: No such table.
        """
        table = self._readers.open(TableStore(self._store, paths), owner=owner, check_alive=check_alive)
        index = self._indexes.get(paths.prefix)
        if index is None or index.config != table.config:
            index = self._indexes[paths.prefix] = MergeIndex(paths, table.config)
        return IndexedTable(table, index)

    def forget(self, paths: TablePaths) -> None:
        """Forget the index of a table: after an error nobody knows whether it is whole. The next run makes another."""
        self._indexes.pop(paths.prefix, None)

    def has_work(self, paths: TablePaths, lane: Lane) -> bool:
        """Say whether a lane would do something now. Costs one listing and the log files that are new.

        Raises:
            NotFound: No such table.
            HaltError: The log cannot be read.
            Unavailable: The store did not answer.
        """
        opened = self.open(paths)
        view, index = opened.table.read_log(), opened.index
        return not plan_merge(view, paths=paths, config=index.config, lane=lane, index=index).is_empty


class MergingEngine(Engine, Protocol):
    """An engine that merges groups of data files."""

    @property
    def merger(self) -> GroupMerger:
        """Runs merge jobs."""
        ...


@dataclass(slots=True)
class _Totals:
    commits: int = 0
    groups: int = 0
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    folded_log_files: int = 0

    def add(self, result: MergeResult) -> None:
        self.commits += result.commit_count
        self.groups += result.group_count
        self.files_in += result.input_count
        self.files_out += result.output_count
        self.bytes_in += result.input_bytes
        self.bytes_out += result.output_bytes
        self.rows += result.row_count
        self.folded_log_files += result.folded_log_count

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class MergeTasks:
    """The work of the tasks, in the process that runs them.

    Args:
        context: Warehouse, engine, locks, wake-ups.
        settings: Of the service.
        metrics: Of the service.
    """

    def __init__(
        self, context: WorkerContext[MergingEngine], *, settings: MergerSettings, metrics: MergeMetrics
    ) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._logs = TableLogs(context.warehouse.store, context.clock)
        self._cold_looked_ms: dict[str, int] = {}
        self.retention = RetentionSchedule(context, interval_ms=settings.merge_retain_interval_ms)
        self.erasures = ErasureSchedule(context, interval_ms=settings.merge_erase_interval_ms)

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

    def sweep(self) -> Work:
        """Wake what each table has to do: hot merges; now and then cold ones, its retention and its open erasures.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        has_hot = partial(self._logs.has_work, lane="hot")
        merges = sweep_tables(self._context, task=MERGE_MERGE, is_needed=has_hot)
        cold = sweep_tables(self._context, task=MERGE_COLD, is_needed=self._is_cold_due)
        retention = sweep_tables(self._context, task=MERGE_RETAIN, is_needed=self.retention.take)
        erasure_count = self.erasures.sweep()
        return Work(
            is_idle=merges.is_idle and cold.is_idle and retention.is_idle and not erasure_count,
            details={
                **merges.details,
                "woken_cold": cold.details["woken"],
                "woken_retention": retention.details["woken"],
                "woken_erasures": erasure_count,
            },
        )

    def _is_cold_due(self, paths: TablePaths) -> bool:
        now_ms = self._context.clock.monotonic_ms()
        looked_ms = self._cold_looked_ms.get(paths.name)
        if looked_ms is not None and now_ms - looked_ms < self._settings.merge_cold_interval_ms:
            return False
        is_due = self._logs.has_work(paths, "cold")
        self._cold_looked_ms[paths.name] = now_ms
        return is_due

    def _take_turn(self, table: str, label: LaneLabel) -> Work:
        """Merge a table until nothing is worth it, or a bound of the turn is met."""
        totals = _Totals()
        end: TurnEnd = "stopped"
        try:
            with self._context.lock(table) as lock:
                end = self._merge_for_a_turn(table, label, totals, lock)
        finally:
            # Commits that have landed stay, and are counted, whatever stopped the turn.
            self._metrics.turns.labels(label, end).inc()
        has_more = end != "done"
        return Work(is_idle=totals.commits == 0, details={**totals.to_json(), "has_more": has_more})

    def _merge_for_a_turn(self, table: str, label: LaneLabel, totals: _Totals, lock: TableLock) -> TurnEnd:
        paths, clock = self._context.warehouse.table(table).paths, self._context.clock
        lane: Lane = "cold" if label == "cold" else "hot"
        limits = self._limits(label)
        started_ms = clock.monotonic_ms()

        def has_time() -> bool:
            return clock.monotonic_ms() - started_ms < self._settings.merge_turn_ms

        def count(result: MergeResult) -> None:
            totals.add(result)
            self._metrics.record(label, result)

        while True:
            lock.check_alive()
            opened = self._logs.open(paths, owner=self._context.owner, check_alive=lock.check_alive)
            try:
                result = merge_table(
                    opened.table,
                    self._context.engine.merger,
                    options=MergeOptions(
                        lane=lane,
                        full=label == "full",
                        limits=replace(
                            limits,
                            max_bytes=max(1, limits.max_bytes - totals.bytes_in),
                            max_files=max(1, limits.max_files - totals.files_in),
                        ),
                    ),
                    watch=MergeWatch(has_time=has_time, on_commit=count, on_check=self._metrics.record_check),
                    index=opened.index,
                )
            except BaseException:
                self._logs.forget(paths)
                raise
            # A commit may have made a larger tier worth a merge: only a run without one says "nothing left".
            if result.committed_key is None:
                return "done"
            if not has_time():
                return "time"
            if totals.bytes_in >= limits.max_bytes or totals.files_in >= limits.max_files:
                return "amount"

    def _limits(self, label: LaneLabel) -> MergeLimits:
        settings = self._settings
        is_hot = label == "hot"
        return MergeLimits(
            max_groups=HOT_LIMITS.max_groups if is_hot else COLD_LIMITS.max_groups,
            max_files=settings.merge_hot_files if is_hot else settings.merge_cold_files,
            max_bytes=settings.merge_hot_bytes if is_hot else settings.merge_cold_bytes,
            commit_bytes=settings.merge_commit_bytes,
        )


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: MergerSettings, metrics: MergeMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = MergeTasks(context, settings=settings, metrics=metrics)
    define_task(app, context, TaskOptions(MERGE_MERGE, needs=needs_if(Verb.MAINTAIN, "full")), tasks.merge)
    define_task(app, context, TaskOptions(MERGE_COLD), tasks.cold)
    define_task(app, context, TaskOptions(MERGE_SWEEP, needs_engine=False), tasks.sweep)
    register_change_tasks(app, context, metrics=metrics)
    register_partition_tasks(app, context, metrics=metrics, schedule=tasks.retention)
    register_erasure_tasks(app, context, settings=settings, metrics=metrics)
