"""The task that changes rows on demand: rewrites and deletions. What and how, is ``row_changes``'s."""

from collections.abc import Sequence
from typing import Any, Final, Protocol, get_args

from celery import Celery
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import CheckAlive, RowChanger, never_stop
from icedb_log.names import MERGE_CHANGE
from icedb_log.table.partition_filter import PartitionMatcher, parse_partition_filters
from icedb_log.table.row_changes import ChangeResult, delete_rows, rewrite_partitions
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs
from icedb_service.readers import LogReaders
from icedb_service.runs import Work
from icedb_service.tasks import TaskOptions, define_task
from icedb_service.worker import Engine, WorkerContext

from icedb_merger.metrics import ChangeCause, MergeMetrics

MAX_NAMED_PARTITIONS: Final = 1000
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
        return Work(is_idle=is_idle, details={"kind": kind, "dry_run": dry_run, **_details(cause, result)})

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
            self._context.warehouse.table(table),
            self._context.engine.changer,
        )
        opened = self._readers.open(store, paths, owner=self._context.owner, check_alive=check_alive)
        if kind == "delete":
            return delete_rows(opened, changer, sql, dry_run=dry_run)
        if not isinstance(partitions, list) or not all(isinstance(text, str) for text in partitions):
            raise InvalidRequest(f"table {table}: a rewrite needs a list of partition filters; an empty one means all")
        matches = PartitionMatcher(parse_partition_filters(partitions), opened.config)
        return rewrite_partitions(opened, changer, sql, matches=matches, dry_run=dry_run)


def _details(kind: ChangeCause, result: ChangeResult) -> dict[str, Any]:
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
        "paths": list(result.partitions[:MAX_NAMED_PARTITIONS]),
    }


def register_change_tasks(app: Celery, context: WorkerContext[Any], *, metrics: MergeMetrics) -> None:
    """Define the task on the service's application."""
    tasks = ChangeTasks(context, metrics=metrics)
    define_task(app, context, TaskOptions(MERGE_CHANGE, needs=needs(Verb.ERASE)), tasks.change)
