"""The tasks that change rows (rewrites and deletions), and those that remove partitions, on demand or by retention."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, get_args

from icedb_log.errors import InvalidRequest
from icedb_log.intervals import Intervals
from icedb_log.model import LogView
from icedb_log.table.partition_removal import PartitionInfo, remove_partitions
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters, select_partitions
from icedb_log.table.retention import retain_table
from icedb_log.table.row_changes import delete_rows, rewrite_partitions
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import Work
from icedb_service.worker import WorkerContext

from icedb_merger.metrics import ChangeCause, MergeMetrics

if TYPE_CHECKING:
    from icedb_engine.jobs.engine import JobEngine


class ChangeTasks:
    """The work of the tasks, in the process that runs them."""

    def __init__(self, context: "WorkerContext[JobEngine]", *, metrics: MergeMetrics, retention: Intervals) -> None:
        self._context = context
        self._metrics = metrics
        self._retention = retention

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
        changer = self._context.engine.changer
        with nullcontext(self._context.open(table)) if dry_run else self._context.open_locked(table) as opened:
            if cause == "delete":
                result = delete_rows(opened, changer, sql, dry_run=dry_run)
            elif not _are_texts(partitions):
                raise InvalidRequest(
                    f"table {table}: a rewrite needs a list of partition filters; an empty one means all"
                )
            else:
                matches = PartitionMatcher(parse_partition_filters(partitions or ()), opened.config)
                result = rewrite_partitions(opened, changer, sql, matches=matches, dry_run=dry_run)
        self._metrics.record_change(cause, result)
        is_idle = not result.file_count
        return Work(is_idle=is_idle, details={"kind": kind, "dry_run": dry_run, **result.details(cause)})

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
        if not _are_texts(globs):
            raise InvalidRequest(f"table {table}: globs must be a list of texts")

        def choose(_view: LogView, infos: tuple[PartitionInfo, ...]) -> frozenset[str]:
            return select_partitions(table, globs, [info.path for info in infos], may_match_all=may_match_all)

        with self._context.open_locked(table) as opened:
            removal = remove_partitions(opened, choose, dry_run=dry_run)
        self._metrics.record_removal("drop", removal)
        return Work(is_idle=not removal.partitions, details=removal.details())

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
        return Work(is_idle=not result.removal.partitions, details=result.details())


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
