"""The tasks that change rows (rewrites and deletions), and those that remove partitions, on demand or by retention."""

from collections.abc import Sequence
from typing import Any, Final, Protocol, get_args

from celery import Celery
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import CheckAlive, RowChanger, never_stop
from icedb_log.keys import TablePaths
from icedb_log.model import LogView
from icedb_log.names import MERGE_CHANGE, MERGE_DROP_PARTITIONS, MERGE_RETAIN
from icedb_log.store.table_store import TableStore
from icedb_log.table.partition_filter import PartitionMatcher, parse_partition_filters
from icedb_log.table.partition_glob import select_partitions
from icedb_log.table.partition_removal import PartitionInfo, RemovalResult, remove_partitions
from icedb_log.table.retain import retain_table
from icedb_log.table.retention import count_kept
from icedb_log.table.row_changes import ChangeResult, delete_rows, rewrite_partitions
from icedb_log.table.stored_config import read_table_config
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs, needs_if
from icedb_service.readers import LogReaders
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import Engine, WorkerContext

from icedb_merger.metrics import ChangeCause, MergeMetrics

MAX_CHANGED_PARTITIONS: Final = 1000
"""Paths of partitions that a result names; the counts are always of all."""


class ChangingEngine(Engine, Protocol):
    """An engine that changes rows."""

    @property
    def changer(self) -> RowChanger:
        """Counts and rewrites."""
        ...


class ChangeTasks:
    """The work of the task, in the process that runs it.

    Args:
        context: Warehouse, engine, locks.
        metrics: Of the service.
    """

    def __init__(self, context: WorkerContext[ChangingEngine], *, metrics: MergeMetrics) -> None:
        self._context = context
        self._metrics = metrics
        self._readers = LogReaders(context.clock)

    def change(
        self,
        table: str,
        kind: str,
        sql: str,
        partitions: list[str] | None = None,
        dry_run: bool = False,  # noqa: FBT001, FBT002 - the message's own form
    ) -> Work:
        """Delete rows by a condition, or rewrite partitions by a query, in one commit.

        Delivery: sent by the CLI, which waits for the result. A run that is lost has changed everything or nothing.
        A deletion that is repeated finds no rows; a rewrite that is repeated runs its query on its own result.

        Args:
            table: Its name.
            kind: ``delete`` or ``rewrite``.
            sql: The condition, or the query over ``_rows``.
            partitions: For a rewrite, partition filters as text; all must hold.
            dry_run: Only say what would be touched; takes no lock.
        """
        if kind not in get_args(ChangeCause):
            raise InvalidRequest(f"table {table}: a change is 'delete' or 'rewrite', not {str(kind)[:80]!r}")
        if not isinstance(sql, str) or (kind == "delete" and partitions is not None):
            raise InvalidRequest(f"table {table}: a {kind} takes SQL as text, and partitions only for a rewrite")
        cause: ChangeCause = "delete" if kind == "delete" else "rewrite"
        if dry_run:
            result = self._run(table, cause, sql, partitions, check_alive=never_stop, dry_run=True)
        else:
            with self._context.lock(table) as lock:
                result = self._run(table, cause, sql, partitions, check_alive=lock.check_alive, dry_run=False)
        self._metrics.record_change(cause, result)
        is_idle = not result.file_count
        return Work(is_idle=is_idle, details={"kind": kind, "dry_run": dry_run, **_change_details(cause, result)})

    def _run(
        self,
        table: str,
        kind: ChangeCause,
        sql: str,
        partitions: Sequence[str] | None,
        *,
        check_alive: CheckAlive,
        dry_run: bool,
    ) -> ChangeResult:
        store, paths, changer = (
            self._context.warehouse.store,
            self._context.warehouse.table(table).paths,
            self._context.engine.changer,
        )
        opened = self._readers.open(TableStore(store, paths), owner=self._context.owner, check_alive=check_alive)
        if kind == "delete":
            return delete_rows(opened, changer, sql, dry_run=dry_run)
        if not isinstance(partitions, list) or not all(isinstance(text, str) for text in partitions):
            raise InvalidRequest(f"table {table}: a rewrite needs a list of partition filters; an empty one means all")
        matches = PartitionMatcher(parse_partition_filters(partitions), opened.config)
        return rewrite_partitions(opened, changer, sql, matches=matches, dry_run=dry_run)


def _change_details(kind: ChangeCause, result: ChangeResult) -> dict[str, Any]:
    scanned = {"files_scanned": result.scanned_count} if kind == "delete" else {}
    return {
        "rows_removed": result.rows_removed,
        "rows_read": result.rows_read,
        **scanned,
        "files_rewritten": result.file_count,
        "files_written": result.output_count,
        "partitions": len(result.partitions),
        "bytes_in": result.input_bytes,
        "bytes_out": result.output_bytes,
        "committed_key": result.committed_key,
        "paths": list(result.partitions[:MAX_CHANGED_PARTITIONS]),
    }


def register_change_tasks(app: Celery, context: WorkerContext[Any], *, metrics: MergeMetrics) -> None:
    """Define the task on the service's application."""
    tasks = ChangeTasks(context, metrics=metrics)
    define_task(app, context, TaskOptions(MERGE_CHANGE, needs=needs(Verb.ERASE)), tasks.change)


MAX_REMOVED_PARTITIONS: Final = 20
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
        config = read_table_config(TableStore(self._context.warehouse.store, paths))
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

        store, paths = self._context.warehouse.store, self._context.warehouse.table(table).paths
        with self._context.lock(table) as lock:
            removal = remove_partitions(
                self._readers.open(TableStore(store, paths), owner=self._context.owner, check_alive=lock.check_alive),
                choose,
                dry_run=dry_run,
            )
        self._metrics.record_removal("drop", removal)
        return Work(is_idle=not removal.partitions, details=_removal_details(removal))

    def retain(self, table: str, force: bool = False) -> Work:  # noqa: FBT001, FBT002 - the message's own form
        """Remove the partitions of a table whose retention has passed, in one commit.

        Delivery: woken by the sweep and sent by the CLI, any number of times. A run that is lost is made good by a
        later one; one that is repeated finds nothing. What only a person may allow is refused unless ``force``.
        """
        store, paths = self._context.warehouse.store, self._context.warehouse.table(table).paths
        try:
            with self._context.lock(table) as lock:
                result = retain_table(
                    self._readers.open(
                        TableStore(store, paths), owner=self._context.owner, check_alive=lock.check_alive
                    ),
                    force=force,
                )
        except LockBusy:
            self._schedule.forget(table)
            raise
        self._metrics.record_retention(table, result)
        kept = {f"kept_{reason}": count for reason, count in count_kept(result.plan).items()}
        return Work(is_idle=not result.removal.partitions, details={**_removal_details(result.removal), **kept})


def _removal_details(removal: RemovalResult) -> dict[str, Any]:
    return {
        "partitions": len(removal.partitions),
        "files": len(removal.removed_paths),
        "rows": removal.row_count,
        "bytes": removal.size_bytes,
        "committed_key": removal.committed_key,
        "paths": [info.path for info in removal.partitions[:MAX_REMOVED_PARTITIONS]],
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
