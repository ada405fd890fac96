"""The tasks of the janitor: which table is cleaned, swept for orphans or purged when. What may go, is the library's.

Several tables are cleaned side by side, each under its own lock; tasks share the readers, the metrics and the times of
the last orphan sweeps, all of which take that.
"""

from collections.abc import Sequence
from typing import Any, Final

from celery import Celery
from icedb_log.clean.deletion import AuditLog, AuditStep
from icedb_log.clean.leftovers import LeftoverResult, sweep_probes
from icedb_log.clean.orphans import OrphanPolicy, OrphanResult
from icedb_log.clean.sweep import SweepResult, sweep_table
from icedb_log.clean.vacuum import VacuumBounds, VacuumCaches, VacuumResult, vacuum_table
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.intervals import MAX_REST_MS, Intervals
from icedb_log.names import JANITOR_ORPHANS, JANITOR_PURGE, JANITOR_SWEEP, JANITOR_VACUUM
from icedb_log.results import Work
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.trash.purge import AUDIT_LOOK_MS, PurgeLimits, has_work, purge_table, read_now_ms
from icedb_log.warehouse import DroppedTable
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import needs
from icedb_service.logs import get_logger
from icedb_service.redis_clients import TableLock
from icedb_service.runs import backoff_key
from icedb_service.tasks import define_task
from icedb_service.worker import WorkerContext, sweep_tables

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings

MAX_OBJECTS: Final = 100_000
"""Data files that one run deletes; then the table is woken again and waits its turn."""
RUNS_PER_TIME_LIMIT: Final = 3
"""A run of a purge ends after this part of a task's time limit; the next one goes on."""
MAX_LOST_NAMES: Final = 10
"""Lost commits that one line of the log names; `icedb fsck` names all, as long as the horizon has not passed them."""


class JanitorTasks:
    """The work of the tasks, in the process that runs them. Safe for several tables at once."""

    def __init__(self, context: WorkerContext[Any], *, settings: JanitorSettings, metrics: JanitorMetrics) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._rests = context.make_rests(JANITOR_VACUUM)
        self._drop_looks = Intervals(context.clock, MAX_REST_MS)
        """When it was seen of each table that nothing of its name is dropped."""
        self._orphan_sweeps = Intervals(context.clock, settings.orphan_sweep_interval_ms)
        """When each table's orphans were looked for; written under the table's lock."""
        self._probe_sweeps = Intervals(context.clock, settings.orphan_sweep_interval_ms)
        run_ms = min(PurgeLimits().run_ms, settings.task_time_limit_ms // RUNS_PER_TIME_LIMIT)
        self._purge_limits = PurgeLimits(run_ms=run_ms)
        self._audit_looks = Intervals(context.clock, AUDIT_LOOK_MS)

    def vacuum(self, table: str) -> Work:
        """Delete a table's dead objects whose time has come; now and then, its orphans and leftovers, too.

        Delivery: woken by the sweep, by the CLI and by itself, any number of times. A run that is lost or cut short is
        gone on with by the next; two at once delete the same objects, which is harmless, and the lock saves the work.
        """
        with self._context.lock(table) as held:
            opened = self._open(table, held)
            paths = opened.paths
            result = vacuum_table(
                opened,
                caches=VacuumCaches(
                    holds=self._context.readers.holds_of(paths),
                    steady=self._context.readers.steady_of(paths),
                    read_view=lambda view: self._context.readers.of_table(TableStore(opened.store, view)),
                ),
                bounds=VacuumBounds(max_objects=MAX_OBJECTS),
                audit=self._open_audit(opened),
            )
            self._metrics.record_vacuum(paths, result, now_ms=self._context.clock.now_ms())
            _warn_of_clock(result)
            _warn_of_lost(result)
            _warn_of_failures("deletes_failed", result.failed)
            # Not before the dead objects are done with: a walk through the whole table can wait.
            swept = None if result.has_more else self._sweep_if_due(opened)
        if result.has_more:
            self._context.wakeups.try_wake(JANITOR_VACUUM, table)
        more = {} if swept is None else swept.details()
        has_rest = result.is_idle and not (result.waiting or result.failed or more.get("deleted_orphans"))
        self._rests.note(table, "nothing is dead" if has_rest else None)
        return Work(is_idle=result.is_idle and not more.get("deleted_orphans"), details={**result.details(), **more})

    def sweep_orphans(self, table: str, *, older_than_ms: int | None = None, force: bool = False) -> Work:
        """Look for a table's orphans and leftovers now, and delete those whose time has come.

        Delivery: sent by ``icedb orphans --delete``. Any number of times: what was deleted is gone. A lost one is asked
        for again.
        """
        with self._context.lock(table) as held:
            opened = self._open(table, held)
            age_ms = opened.config.orphan_age_ms if older_than_ms is None else older_than_ms
            result = self._sweep(opened, OrphanPolicy(age_ms, self._settings.janitor_orphan_share, force))
            self._orphan_sweeps.note(table)
        return Work.of(result)

    def purge(self, table: str) -> Work:
        """Purge a dropped table whose time in the trash is over, or go on with its purge.

        Delivery: woken by the sweep, by ``icedb table drop --purge`` and by itself, any number of times; a table that
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
                limits=self._purge_limits,
            )
        self._metrics.record_purge(place.paths, result, now_ms=clock.now_ms())
        _warn_of_failures("purge_deletes_failed", result.failed, mitigation="the next sweep goes on")
        if not result.failed and result.state == "purging":
            self._context.wakeups.try_wake(JANITOR_PURGE, table)
        return Work.of(result)

    def sweep(self) -> Work:
        """Wake the vacuum of every table, and the purge of dropped ones.

        Delivery: sent by beat, collapsed while one waits. A lost one is made good by the next.
        """
        purge_count, purging = self._wake_purges()
        work = sweep_tables(
            self._context, task=JANITOR_VACUUM, is_needed=lambda paths: self._rests.is_due(paths.name), also=purging
        )
        return Work(is_idle=work.is_idle and not purge_count, details={**work.details, "purges": purge_count})

    def _sweep_if_due(self, table: Table) -> SweepResult | None:
        """Sweep a table if the last time is long enough ago. The table's lock is held.

        A sweep that failed is the next interval's, too: it lists all that a table has, and vacuums come often.
        """
        if not self._orphan_sweeps.is_due(table.name):
            return None
        table = table.renewed()
        self._orphan_sweeps.note(table.name)
        return self._sweep(table, OrphanPolicy(table.config.orphan_age_ms, self._settings.janitor_orphan_share))

    def _sweep(self, table: Table, policy: OrphanPolicy) -> SweepResult:
        def account(orphans: OrphanResult) -> None:
            self._metrics.record_orphans(table.paths, orphans)
            _warn_of_orphans(orphans)

        result = sweep_table(table, policy=policy, audit=self._open_audit(table), on_orphans=account)
        self._metrics.record_leftovers(table.paths, result.leftovers)
        self._metrics.record_deletes("audit", deleted_count=len(result.audit.keys), failed=result.audit.failed)
        _warn_of_leftovers(result.leftovers)
        self._sweep_probes()
        return result

    def _sweep_probes(self) -> None:
        """Take away what probes of the store left: once an interval, whatever the table is. Never fails."""
        if not self._probe_sweeps.is_due(""):
            return
        self._probe_sweeps.note("")
        root = self._context.warehouse.root
        try:
            done = sweep_probes(self._context.warehouse.store, prefix=f"{root}/" if root else "")
        except IceDBError as error:
            get_logger().warning("probes_not_swept", error=type(error).__name__, mitigation="next sweep")
            return
        self._metrics.record_deletes("leftover", deleted_count=len(done.keys), failed=done.failed)

    def _wake_purges(self) -> tuple[int, frozenset[str]]:
        """Wake the purge of every table that it has something to do for.

        Returns:
            How many were woken, and the tables whose purge is due, or has begun and has not ended.

        Raises:
            Unavailable: The store or Redis did not answer.
        """
        dropped = self._list_dropped()
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

    def _list_dropped(self) -> tuple[DroppedTable, ...]:
        """List what is dropped; a table that was seen to be there is not asked again for a while."""
        there = self._context.list_tables()
        known = {name for name in there if not self._drop_looks.is_due(name)}
        dropped = self._context.warehouse.list_dropped(known=known, on_problem=_warn_of_unread)
        for name in {*there} - known - {table.name for table in dropped}:
            self._drop_looks.note(name)
        return dropped

    def _is_audit_due(self, table: DroppedTable) -> bool:
        is_over = table.mark.is_final and table.mark.state == "purged"
        return is_over and self._audit_looks.look(table.name, lambda: True)

    def _open(self, table: str, held: TableLock) -> Table:
        """Open a table that asks between chunks whether the lock is kept, and whether the run takes too long."""
        clock, limit_ms = self._context.clock, self._settings.task_time_limit_ms
        ends_ms = clock.monotonic_ms() + limit_ms

        def check_alive() -> None:
            held.check_alive()
            if clock.monotonic_ms() >= ends_ms:
                # A thread cannot be killed: it stops by itself, and what it did is kept.
                raise Unavailable(
                    f"table {table}: stopped after {limit_ms} ms (ICEDB_TASK_TIME_LIMIT_MS); goes on later"
                )

        return self._context.open(table, check_alive=check_alive)

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


def _warn_of_unread(name: str, error: Unavailable) -> None:
    get_logger().warning("purge_not_looked_for", table=name, error=str(error), mitigation="next sweep")


def _warn_of_failures(event: str, failed: Sequence[FailedDelete], *, mitigation: str = "next run") -> None:
    """Log deletes that failed: how many, and one of them."""
    if failed:
        first = failed[0]
        get_logger().warning(
            event, count=len(failed), key=first.key, kind=first.kind, reason=first.reason, mitigation=mitigation
        )


def _warn_of_orphans(result: OrphanResult) -> None:
    warn, walk = get_logger().warning, result.walk
    _warn_of_failures("orphans_not_deleted", result.failed)
    if walk.unknown:
        warn("unknown_objects_kept", count=walk.unknown_count, key=walk.unknown[0], mitigation="kept; look at them")
    if walk.future:
        warn(
            "orphans_from_the_future",
            count=len(walk.future),
            key=walk.future[0],
            mitigation="kept; the clock of the store, or of who wrote them, was wrong",
        )
    if result.held.count:
        warn(
            "orphans_held",
            count=result.held.count,
            size_bytes=result.held.size_bytes,
            share=result.share,
            max_share=result.max_share,
            mitigation="kept until a person has looked whether the log is whole",
        )


def _warn_of_leftovers(result: LeftoverResult) -> None:
    _warn_of_failures("leftovers_not_deleted", result.failed)
    for kind, problem in result.problems.items():
        get_logger().warning("leftovers_not_swept", kind=kind, problem=problem, mitigation="next sweep")


def _warn_of_lost(result: VacuumResult) -> None:
    """Log it each time: from the next vacuum on the horizon may hide it (F5)."""
    if result.lost:
        get_logger().warning(
            "commits_lost",
            count=len(result.lost),
            names=result.lost[:MAX_LOST_NAMES],
            mitigation="none; restore their log files, or rebuild the log before the orphan age is over",
        )


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
    define_task(app, context, JANITOR_ORPHANS, tasks.sweep_orphans, needs=needs(Verb.MAINTAIN))
    define_task(app, context, JANITOR_PURGE, tasks.purge)
    define_task(app, context, JANITOR_SWEEP, tasks.sweep)
