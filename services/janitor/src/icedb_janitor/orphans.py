"""Orphan sweeps: when it is a table's turn, and the task to ask for one. What may go: :mod:`icedb_log.clean`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icedb_log.clean.deletion import AuditLog, sweep_audit
from icedb_log.clean.leftovers import LeftoverResult, sweep_leftovers, sweep_probes
from icedb_log.clean.orphans import OrphanPolicy, OrphanResult, describe_sweep, sweep_orphans
from icedb_log.errors import IceDBError
from icedb_log.intervals import Intervals
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from icedb_service.logs import get_logger
from icedb_service.redis_clients import TableLock
from icedb_service.runs import Work
from icedb_service.worker import WorkerContext

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings


@dataclass(frozen=True, slots=True)
class JanitorRun:
    """One run of the janitor over a table, under its lock.

    Attributes:
        table: The table; asks whether the lock is kept, and whether the run takes too long.
        audit: Where it is written down what is deleted.
    """

    table: Table
    audit: AuditLog


class JanitorOrphans:
    """Orphan sweeps, in the process that runs them. Safe for several tables at once.

    Args:
        begin_run: Begins a run under a table's lock.
        note_deletions: Told what was deleted.
    """

    def __init__(
        self,
        context: WorkerContext[Any],
        *,
        settings: JanitorSettings,
        metrics: JanitorMetrics,
        begin_run: Callable[[str, TableLock], JanitorRun],
        note_deletions: Callable[[TableStore, Sequence[str]], None],
    ) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._begin_run = begin_run
        self._note_deletions = note_deletions
        self._sweeps = Intervals(context.clock, settings.orphan_sweep_interval_ms)
        """When each table's orphans were looked for; written under the table's lock."""
        self._probe_sweeps = Intervals(context.clock, settings.orphan_sweep_interval_ms)

    def sweep(
        self, table: str, *, older_than_ms: int | None = None, max_share: float | None = None, force: bool = False
    ) -> Work:
        """Look for a table's orphans and leftovers now, and delete those whose time has come.

        Delivery: sent by ``icedb orphans --delete``. Any number of times: what was deleted is gone, and of two sweeps
        at once one writes the record and deletes (J5). A lost one is asked for again.
        """
        with self._context.lock(table) as held:
            run = self._begin_run(table, held)
            share = self._settings.janitor_orphan_share if max_share is None else max_share
            age_ms = self._age_ms(run) if older_than_ms is None else older_than_ms
            details = self._sweep(run, OrphanPolicy(age_ms, share, force))
            self._sweeps.note(table)
        return Work(is_idle=not (details["deleted_orphans"] or details["deleted_leftovers"]), details=details)

    def sweep_if_due(self, run: JanitorRun) -> dict[str, Any]:
        """Do the same if the last time is long enough ago. The table's lock is held.

        A sweep that failed is the next interval's, too: it lists all that a table has, and vacuums come often.
        """
        if not self._sweeps.is_due(run.table.name):
            return {}
        run = replace(run, table=run.table.renewed())
        # Also when there are more orphans than one sweep takes: these have to be seen twice, too.
        self._sweeps.note(run.table.name)
        return self._sweep(run, OrphanPolicy(self._age_ms(run), self._settings.janitor_orphan_share))

    def _age_ms(self, run: JanitorRun) -> int:
        return max(self._settings.janitor_orphan_age_ms, run.table.config.orphan_age_ms)

    def _sweep(self, run: JanitorRun, policy: OrphanPolicy) -> dict[str, Any]:
        table, clock = run.table, self._context.clock
        result = sweep_orphans(table, policy=policy, audit=run.audit)
        self._note_deletions(table, result.deleted)
        self._metrics.record_orphans(table.paths, result)
        _warn_of_orphans(result)
        leftovers = sweep_leftovers(table, result.walk, audit=run.audit)
        old_audit = sweep_audit(
            table, retention_ms=table.config.audit_retention_ms, clock=clock, check_alive=table.check_alive
        )
        self._metrics.record_leftovers(table.paths, leftovers)
        self._metrics.record_deletes("audit", deleted_count=len(old_audit.keys), failed=old_audit.failed)
        _warn_of_leftovers(leftovers)
        self._sweep_probes()
        return describe_sweep(result, leftovers) | {"deleted_audit": len(old_audit.keys)}

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


def warn_of_failures(event: str, failed: Sequence[FailedDelete], *, mitigation: str = "next run") -> None:
    """Log deletes that failed: how many, and one of them."""
    if failed:
        first = failed[0]
        get_logger().warning(
            event, count=len(failed), key=first.key, kind=first.kind, reason=first.reason, mitigation=mitigation
        )


def _warn_of_orphans(result: OrphanResult) -> None:
    warn, walk = get_logger().warning, result.walk
    warn_of_failures("orphans_not_deleted", result.failed)
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
    if result.lost:
        warn(
            "commits_lost",
            count=len(result.lost),
            name=result.lost[0],
            mitigation="orphans are kept until a person has decided",
        )
    if result.record_problem:
        warn("orphan_record_unusable", problem=result.record_problem, mitigation="orphans wait a grace period longer")


def _warn_of_leftovers(result: LeftoverResult) -> None:
    warn_of_failures("leftovers_not_deleted", result.failed)
    for kind, problem in result.problems.items():
        get_logger().warning("leftovers_not_swept", kind=kind, problem=problem, mitigation="next sweep")
