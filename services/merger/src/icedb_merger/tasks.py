"""The tasks of the merger: which table is merged when. What and how, is :mod:`icedb_log.merge`'s business."""

from dataclasses import dataclass
from typing import Any, Protocol

from celery import Celery
from icedb_log.jobs import GroupMerger
from icedb_log.keys import TablePaths
from icedb_log.merge import MergeResult, merge_table
from icedb_service.names import MERGE_MERGE, MERGE_RETAIN, MERGE_SWEEP
from icedb_service.readers import LogReaders
from icedb_service.redlock import TableLock
from icedb_service.runs import Work
from icedb_service.sweeps import sweep_tables
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import Engine, WorkerContext

from icedb_merger.changes import register_change_tasks
from icedb_merger.erasures import ErasureSchedule, register_erasure_tasks
from icedb_merger.metrics import MergeMetrics
from icedb_merger.partitions import RetentionSchedule, register_partition_tasks
from icedb_merger.settings import MergerSettings

MAX_ROUNDS_OF_FULL_MERGE = 10_000


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
        self.commits += 1 if result.committed_key else 0
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
        self._readers = LogReaders(context.clock)
        self.retention = RetentionSchedule(context, interval_ms=settings.merge_retain_interval_ms)
        self.erasures = ErasureSchedule(context, interval_ms=settings.merge_erase_interval_ms)

    def merge(self, table: str, full: bool = False) -> Work:  # noqa: FBT001, FBT002 - the message's own form
        """Merge a table until nothing is worth it, or until other tables should have their turn.

        Delivery: woken by ingest, by the sweep and by the CLI, any number of times. A run that is lost leaves the
        table as it was. Two at once exclude each other by the lock, and if that fails by the fence.
        """
        paths = self._context.warehouse.table(table)
        totals = _Totals()
        max_rounds = MAX_ROUNDS_OF_FULL_MERGE if full else self._settings.merge_max_rounds
        has_more = True
        rounds = 0
        with self._context.lock(table) as lock:
            while has_more and rounds < max_rounds:
                lock.check_alive()
                result = self._merge_once(paths, lock=lock, full=full)
                totals.add(result)
                rounds += 1
                # A commit may have made a larger tier worth a merge: only a run without one says "nothing left".
                has_more = result.committed_key is not None
        if has_more:
            self._context.wakeups.try_wake(MERGE_MERGE, table)
        return Work(is_idle=totals.commits == 0, details={**totals.to_json(), "has_more": has_more})

    def sweep(self) -> Work:
        """Wake the merge of every table; now and then, its retention and its open erasures.

        A merge that is not worth it costs one listing.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        merges = sweep_tables(self._context, task=MERGE_MERGE)
        retention = sweep_tables(self._context, task=MERGE_RETAIN, is_needed=self.retention.take)
        erasure_count = self.erasures.sweep()
        return Work(
            is_idle=merges.is_idle and retention.is_idle and not erasure_count,
            details={
                **merges.details,
                "woken_retention": retention.details["woken"],
                "woken_erasures": erasure_count,
            },
        )

    def _merge_once(self, paths: TablePaths, *, lock: TableLock, full: bool) -> MergeResult:
        store = self._context.warehouse.store
        result = merge_table(
            store,
            paths,
            clock=self._context.clock,
            merger=self._context.engine.merger,
            owner=self._context.owner,
            full=full,
            check_alive=lock.check_alive,
            reader=self._readers.of_table(store, paths),
        )
        self._metrics.record(result)
        return result


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: MergerSettings, metrics: MergeMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = MergeTasks(context, settings=settings, metrics=metrics)
    define_task(app, context, TaskOptions(MERGE_MERGE), tasks.merge)
    define_task(app, context, TaskOptions(MERGE_SWEEP, needs_engine=False), tasks.sweep)
    register_change_tasks(app, context, metrics=metrics)
    register_partition_tasks(app, context, metrics=metrics, schedule=tasks.retention)
    register_erasure_tasks(app, context, settings=settings, metrics=metrics)
