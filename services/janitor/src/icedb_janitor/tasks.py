"""The tasks of the janitor: which table is cleaned when. What may go, is the library's business.

Several tables are cleaned side by side, each under its own lock; tasks share the readers, the metrics and the times of
the last orphan sweeps, all of which take that.
"""

from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery
from icedb_log.clean.deletion import AuditLog, AuditStep
from icedb_log.clean.vacuum import VacuumBounds, VacuumCaches, VacuumResult, vacuum_table
from icedb_log.erasure.erasures import note_deletions
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.names import JANITOR_ORPHANS, JANITOR_PURGE, JANITOR_SWEEP, JANITOR_VACUUM, MERGE_ERASE
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs
from icedb_service.logs import get_logger
from icedb_service.redis_clients import TableLock
from icedb_service.runs import Work
from icedb_service.tasks import define_task
from icedb_service.worker import WorkerContext, sweep_tables

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.orphans import JanitorOrphans, JanitorRun, warn_of_failures
from icedb_janitor.purges import JanitorPurges
from icedb_janitor.settings import JanitorSettings


class JanitorTasks:
    """The work of the tasks, in the process that runs them. Safe for several tables at once."""

    def __init__(self, context: WorkerContext[Any], *, settings: JanitorSettings, metrics: JanitorMetrics) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self.orphans = JanitorOrphans(
            context,
            settings=settings,
            metrics=metrics,
            begin_run=self._begin_run,
            note_deletions=self._note_deletions,
        )
        self.purges = JanitorPurges(context, settings=settings, metrics=metrics, open_audit=self._open_audit)

    def vacuum(self, table: str) -> Work:
        """Delete a table's dead objects whose time has come; now and then, its orphans and leftovers, too.

        Delivery: woken by the sweep, by the CLI and by itself, any number of times. A run that is lost or cut short is
        gone on with by the next; two at once delete the same objects, which is harmless, and the lock saves the work.
        """
        with self._context.lock(table) as held:
            run = self._begin_run(table, held)
            paths = run.table.paths
            result = vacuum_table(
                run.table,
                caches=VacuumCaches(
                    holds=self._context.readers.holds_of(paths),
                    steady=self._context.readers.steady_of(paths),
                    read_view=lambda view: self._context.readers.of_table(TableStore(run.table.store, view)),
                ),
                bounds=VacuumBounds(max_objects=self._settings.janitor_objects_per_run),
                audit=run.audit,
            )
            self._metrics.record_vacuum(paths, result, now_ms=self._context.clock.now_ms())
            _warn_of_clock(result)
            warn_of_failures("deletes_failed", result.failed)
            self._note_deletions(run.table, result.deleted_data)
            details = result.details()
            # Not before the dead objects are done with: a walk through the whole table can wait.
            if not result.has_more:
                details |= self.orphans.sweep_if_due(run)
        if result.has_more:
            self._context.wakeups.try_wake(JANITOR_VACUUM, table)
        did = result.deleted_logs or result.deleted_data or result.stripped_count
        return Work(is_idle=not (did or details.get("deleted_orphans")), details=details)

    def sweep(self) -> Work:
        """Wake the vacuum of every table, and the purge of dropped ones.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        purge_count, purging = self.purges.wake_due()
        work = sweep_tables(self._context, task=JANITOR_VACUUM, also=purging)
        return Work(is_idle=work.is_idle and not purge_count, details={**work.details, "purges": purge_count})

    def _begin_run(self, table: str, held: TableLock) -> JanitorRun:
        opened = self._context.open(table, check_alive=self._bound_run(held, table))
        return JanitorRun(opened, self._open_audit(opened))

    def _bound_run(self, held: TableLock, table: str) -> Callable[[], None]:
        """Return what is asked between chunks: whether the lock is kept, and whether the run takes too long."""
        clock, limit_ms = self._context.clock, self._settings.task_time_limit_ms
        ends_ms = clock.monotonic_ms() + limit_ms

        def check_alive() -> None:
            held.check_alive()
            if clock.monotonic_ms() >= ends_ms:
                # A thread cannot be killed: it stops by itself, and what it did is kept.
                raise Unavailable(
                    f"table {table}: stopped after {limit_ms} ms (ICEDB_TASK_TIME_LIMIT_MS); goes on later"
                )

        return check_alive

    def _open_audit(self, table: TableStore) -> AuditLog:
        def count(step: AuditStep, error: IceDBError) -> None:
            self._metrics.audit_failures.labels(step).inc()
            get_logger().warning(
                "audit_not_written",
                step=step,
                error=str(error),
                mitigation="nothing more is deleted" if step == "announce" else "the announcement says what it was",
            )

        return AuditLog(table, clock=self._context.clock, owner=self._context.owner, on_problem=count)

    def _note_deletions(self, table: TableStore, keys: Sequence[str]) -> None:
        """Tell open erasures what was deleted, and wake who carries them on. Never fails: who looks sees it, too."""
        try:
            noted_count = note_deletions(table, keys)
        except IceDBError as error:
            get_logger().warning(
                "deletions_not_noted", error=type(error).__name__, mitigation="open erasures look for themselves"
            )
            return
        if noted_count:
            self._context.wakeups.try_wake(MERGE_ERASE, table.name)


def _warn_of_clock(result: VacuumResult) -> None:
    if result.held_back_ms > MAX_STORE_GAP_MS:
        get_logger().warning(
            "store_clock_jumped",
            held_back_ms=result.held_back_ms,
            mitigation="ages are measured without the jump for a grace period or two",
        )


def register_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: JanitorSettings, metrics: JanitorMetrics
) -> None:
    """Define the service's tasks on its application."""
    tasks = JanitorTasks(context, settings=settings, metrics=metrics)
    define_task(app, context, JANITOR_VACUUM, tasks.vacuum)
    define_task(app, context, JANITOR_ORPHANS, tasks.orphans.sweep, needs=needs(Verb.MAINTAIN))
    define_task(app, context, JANITOR_PURGE, tasks.purges.purge)
    define_task(app, context, JANITOR_SWEEP, tasks.sweep)
