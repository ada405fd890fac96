"""The purge of dropped tables: when it is woken, and what of it is counted. How it is done: :mod:`icedb_log.clean`."""

from collections.abc import Callable
from typing import Any, Final

from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.purge import AUDIT_LOOK_MS, PurgeLimits, has_work, purge_table, read_now_ms
from icedb_log.intervals import Intervals
from icedb_log.names import JANITOR_PURGE
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import DroppedTable
from icedb_service.runs import Work, backoff_key
from icedb_service.worker import WorkerContext

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.orphans import warn_of_failures
from icedb_janitor.settings import JanitorSettings

RUNS_PER_TIME_LIMIT: Final = 3
"""A run ends after this part of a task's time limit; the next one goes on."""


class JanitorPurges:
    """The task that purges, in the process that runs it.

    Args:
        open_audit: Returns where it is written down what is deleted of a table.
    """

    def __init__(
        self,
        context: WorkerContext[Any],
        *,
        settings: JanitorSettings,
        metrics: JanitorMetrics,
        open_audit: Callable[[TableStore], AuditLog],
    ) -> None:
        self._context = context
        self._metrics = metrics
        self._open_audit = open_audit
        self._limits = PurgeLimits(run_ms=min(PurgeLimits().run_ms, settings.task_time_limit_ms // RUNS_PER_TIME_LIMIT))
        self._audit_looks = Intervals(context.clock, AUDIT_LOOK_MS)

    def purge(self, table: str) -> Work:
        """Purge a dropped table whose time in the trash is over, or go on with its purge.

        Delivery: woken by the sweep, by ``icedb table drop --force`` and by itself, any number of times; a table that
        is not dropped is left alone. A run that is killed is gone on with by the next; two at once are harmless, and
        the lock saves the work.
        """
        place, clock = self._context.warehouse.table(table), self._context.clock
        with self._context.lock(table) as held:
            result = purge_table(
                place,
                clock=clock,
                owner=self._context.owner,
                audit=self._open_audit(place),
                check_alive=held.check_alive,
                limits=self._limits,
            )
        self._metrics.record_purge(place.paths, result, now_ms=clock.now_ms())
        warn_of_failures("purge_deletes_failed", result.failed, mitigation="the next sweep goes on")
        if not result.failed and result.state == "purging":
            self._context.wakeups.try_wake(JANITOR_PURGE, table)
        details: dict[str, Any] = {
            "state": result.state,
            "deleted": result.deleted_count,
            "deleted_bytes": result.deleted_bytes,
            "failed": len(result.failed),
            "waits_for": [f"{claim.kind} {claim.held_by}" for claim in result.waits_for],
        }
        return Work(is_idle=not result.deleted_count, details=details)

    def wake_due(self) -> tuple[int, frozenset[str]]:
        """Wake the purge of every table that it has something to do for.

        Returns:
            How many were woken, and the tables whose purge is due, or has begun and has not ended.

        Raises:
            Unavailable: The store or Redis did not answer.
        """
        dropped = self._context.warehouse.list_dropped()
        if not dropped:
            return 0, frozenset()
        now_ms = read_now_ms(self._context.warehouse)
        unfinished = frozenset(table.name for table in dropped if has_work(table, now_ms=now_ms))
        woken_count = 0
        for table in dropped:
            is_wanted = table.name in unfinished or self._is_audit_due(table)
            if is_wanted and self._context.runner.backoff.is_due(backoff_key(JANITOR_PURGE, table.name)):
                woken_count += self._context.wakeups.wake(JANITOR_PURGE, table.name)
        return woken_count, unfinished

    def _is_audit_due(self, table: DroppedTable) -> bool:
        is_over = table.mark.is_final and table.mark.state == "purged"
        return is_over and self._audit_looks.look(table.name, lambda: True)
