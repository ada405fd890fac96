"""The tasks that remove partitions: on demand, and when their retention has passed."""

from typing import Any, Final

from celery import Celery
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.model import LogView
from icedb_log.names import MERGE_DROP_PARTITIONS, MERGE_RETAIN
from icedb_log.table.partition_glob import select_partitions
from icedb_log.table.partition_removal import PartitionInfo, RemovalResult, remove_partitions
from icedb_log.table.retain import retain_table
from icedb_log.table.retention import count_kept
from icedb_log.table.stored_config import read_table_config
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs, needs_if
from icedb_service.readers import LogReaders
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import WorkerContext

from icedb_merger.metrics import MergeMetrics

MAX_NAMED_PARTITIONS: Final = 20
"""Paths of partitions that a result, and the log, name; the counts are always of all."""


class RetentionSchedule:
    """When a sweep looks at a table's retention again. In memory: a worker that starts looks at all tables.

    Args:
        context: Of the worker.
        interval_ms: How long a table is left alone after it was looked at.
    """

    def __init__(self, context: WorkerContext[Any], *, interval_ms: int) -> None:
        self._context = context
        self._interval_ms = interval_ms
        self._looked_ms: dict[str, int] = {}

    def take(self, paths: TablePaths) -> bool:
        """Say whether a table has a retention and it is time to look; it is not, then, for the interval.

        Raises:
            IceDBError: The configuration cannot be read; the next sweep asks again.
        """
        now_ms = self._context.clock.monotonic_ms()
        looked_ms = self._looked_ms.get(paths.name)
        if looked_ms is not None and now_ms - looked_ms < self._interval_ms:
            return False
        config = read_table_config(self._context.warehouse.store, paths)
        self._looked_ms[paths.name] = now_ms
        return config.retention_ms is not None

    def forget(self, table: str) -> None:
        """Let the next sweep look at a table again."""
        self._looked_ms.pop(table, None)


class PartitionTasks:
    """The work of the tasks, in the process that runs them.

    Args:
        context: Warehouse, locks.
        metrics: Of the service.
        schedule: Told of a run that did not get its turn.
    """

    def __init__(self, context: WorkerContext[Any], *, metrics: MergeMetrics, schedule: RetentionSchedule) -> None:
        self._context = context
        self._metrics = metrics
        self._schedule = schedule
        self._readers = LogReaders(context.clock)

    def drop_partitions(
        self,
        table: str,
        globs: list[str],
        may_match_all: bool = False,  # noqa: FBT001, FBT002 - the message's own form
        dry_run: bool = False,  # noqa: FBT001, FBT002
    ) -> Work:
        """Remove the partitions that some globs mean, in one commit.

        Delivery: sent by the CLI, once. A run that is lost has removed everything or nothing; one that is repeated
        finds no partition and is refused.
        """
        if not isinstance(globs, list) or not all(isinstance(glob, str) for glob in globs):
            raise InvalidRequest(f"table {table}: globs must be a list of texts")

        def choose(_view: LogView, infos: tuple[PartitionInfo, ...]) -> frozenset[str]:
            return select_partitions(table, globs, [info.path for info in infos], may_match_all=may_match_all)

        store, paths = self._context.warehouse.store, self._context.warehouse.table(table)
        with self._context.lock(table) as lock:
            removal = remove_partitions(
                self._readers.open(store, paths, owner=self._context.owner, check_alive=lock.check_alive),
                choose,
                dry_run=dry_run,
            )
        self._metrics.record_removal("drop", removal)
        return Work(is_idle=not removal.partitions, details=_details(removal))

    def retain(self, table: str, force: bool = False) -> Work:  # noqa: FBT001, FBT002 - the message's own form
        """Remove the partitions of a table whose retention has passed, in one commit.

        Delivery: woken by the sweep and sent by the CLI, any number of times. A run that is lost is made good by a
        later one; one that is repeated finds nothing. What only a person may allow is refused unless ``force``.
        """
        store, paths = self._context.warehouse.store, self._context.warehouse.table(table)
        try:
            with self._context.lock(table) as lock:
                result = retain_table(
                    self._readers.open(store, paths, owner=self._context.owner, check_alive=lock.check_alive),
                    force=force,
                )
        except LockBusy:
            self._schedule.forget(table)
            raise
        self._metrics.record_retention(table, result)
        kept = {f"kept_{reason}": count for reason, count in count_kept(result.plan).items()}
        return Work(is_idle=not result.removal.partitions, details={**_details(result.removal), **kept})


def _details(removal: RemovalResult) -> dict[str, Any]:
    return {
        "partitions": len(removal.partitions),
        "files": len(removal.removed_paths),
        "rows": removal.row_count,
        "bytes": removal.size_bytes,
        "committed_key": removal.committed_key,
        "paths": [info.path for info in removal.partitions[:MAX_NAMED_PARTITIONS]],
    }


def register_partition_tasks(
    app: Celery, context: WorkerContext[Any], *, metrics: MergeMetrics, schedule: RetentionSchedule
) -> None:
    """Define these tasks on the service's application."""
    tasks = PartitionTasks(context, metrics=metrics, schedule=schedule)
    drop = TaskOptions(MERGE_DROP_PARTITIONS, needs_engine=False, needs=needs(Verb.ERASE))
    define_task(app, context, drop, tasks.drop_partitions)
    retain = TaskOptions(MERGE_RETAIN, needs_engine=False, needs=needs_if(Verb.ERASE, "force"))
    define_task(app, context, retain, tasks.retain)
