"""Orphan sweeps: when it is a table's turn, and the task to ask for one. What may go: :mod:`icedb_log.clean`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icedb_log.clean.audit import AuditLog, sweep_audit
from icedb_log.clean.leftovers import LeftoverResult, sweep_leftovers, sweep_probes
from icedb_log.clean.orphan_plan import OrphanPolicy
from icedb_log.clean.orphans import OrphanResult, sweep_orphans
from icedb_log.errors import IceDBError
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_service.logs import get_logger
from icedb_service.readers import LogReaders
from icedb_service.redis_clients import TableLock
from icedb_service.runs import Work
from icedb_service.worker import WorkerContext

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings


@dataclass(frozen=True, slots=True)
class RunTools:
    """What each run of the janitor that deletes has.

    Attributes:
        audit: Where it is written down what is deleted.
        check_alive: Raises when the lock is lost or the run takes too long.
    """

    audit: AuditLog
    check_alive: Callable[[], None]


class JanitorOrphans:
    """Orphan sweeps, in the process that runs them. Safe for several tables at once.

    Args:
        context: Warehouse, locks.
        settings: Of the service.
        metrics: Of the service.
        readers: Of the process.
        begin_run: Makes the tools of a run under a table's lock.
        note_deletions: Told what was deleted.
    """

    def __init__(
        self,
        context: WorkerContext[Any],
        *,
        settings: JanitorSettings,
        metrics: JanitorMetrics,
        readers: LogReaders,
        begin_run: Callable[[TablePaths, TableLock], RunTools],
        note_deletions: Callable[[TablePaths, Sequence[str]], None],
    ) -> None:
        self._context = context
        self._settings = settings
        self._metrics = metrics
        self._readers = readers
        self._begin_run = begin_run
        self._note_deletions = note_deletions
        self._swept_ms: dict[str, int] = {}
        """When each table's orphans were looked for, monotonic; written under the table's lock."""
        self._probes_swept_ms: int | None = None

    def sweep(
        self, table: str, *, older_than_ms: int | None = None, max_share: float | None = None, force: bool = False
    ) -> Work:
        """Look for a table's orphans and leftovers now, and delete those whose time has come.

        Delivery: sent by ``icedb orphans --delete``. Any number of times: what was deleted is gone, and of two sweeps
        at once one writes the record and deletes (J5). A lost one is asked for again.
        """
        context = self._context
        paths = context.warehouse.table(table).paths
        config = read_table_config(TableStore(context.warehouse.store, paths))
        share = self._settings.janitor_orphan_share if max_share is None else max_share
        age_ms = self._age_ms(config) if older_than_ms is None else older_than_ms
        with context.lock(table) as held:
            details = self._sweep(
                paths, config, policy=OrphanPolicy(age_ms, share, force), tools=self._begin_run(paths, held)
            )
        return Work(is_idle=not (details["deleted_orphans"] or details["deleted_leftovers"]), details=details)

    def sweep_if_due(self, paths: TablePaths, tools: RunTools) -> dict[str, Any]:
        """Do the same if the last time is long enough ago. The table's lock is held.

        A sweep that failed is the next interval's, too: it lists all that a table has, and vacuums come often.
        """
        now_ms = self._context.clock.monotonic_ms()
        swept_ms = self._swept_ms.get(paths.name)
        if swept_ms is not None and now_ms - swept_ms < self._settings.orphan_sweep_interval_ms:
            return {}
        config = read_table_config(TableStore(self._context.warehouse.store, paths))
        policy = OrphanPolicy(self._age_ms(config), self._settings.janitor_orphan_share)
        self._swept_ms[paths.name] = now_ms
        return self._sweep(paths, config, policy=policy, tools=tools)

    def _age_ms(self, config: TableConfig) -> int:
        return max(self._settings.janitor_orphan_age_ms, config.orphan_age_ms)

    def _sweep(
        self, paths: TablePaths, config: TableConfig, *, policy: OrphanPolicy, tools: RunTools
    ) -> dict[str, Any]:
        store, clock = self._context.warehouse.store, self._context.clock
        began_ms = clock.monotonic_ms()
        table = self._readers.open(TableStore(store, paths), check_alive=tools.check_alive)
        result = sweep_orphans(table, policy=policy, audit=tools.audit)
        self._note_deletions(paths, result.deleted)
        self._metrics.record_orphans(paths, result)
        _warn_of_orphans(result)
        leftovers = sweep_leftovers(replace(table, config=config), result.leftovers, audit=tools.audit)
        old_audit = sweep_audit(
            TableStore(store, paths), retention_ms=config.audit_retention_ms, clock=clock, check_alive=tools.check_alive
        )
        self._metrics.record_leftovers(paths, leftovers)
        self._metrics.record_deletes("audit", deleted_count=len(old_audit.keys), failed=old_audit.failed)
        _warn_of_leftovers(leftovers)
        self._sweep_probes()
        # Also when there are more than one sweep takes: these have to be seen twice, too.
        self._swept_ms[paths.name] = began_ms
        return _describe(result, leftovers) | {"deleted_audit": len(old_audit.keys)}

    def _sweep_probes(self) -> None:
        """Take away what probes of the store left: once an interval, whatever the table is. Never fails."""
        now_ms = self._context.clock.monotonic_ms()
        swept_ms = self._probes_swept_ms
        if swept_ms is not None and now_ms - swept_ms < self._settings.orphan_sweep_interval_ms:
            return
        self._probes_swept_ms = now_ms
        root = self._context.warehouse.root
        try:
            done = sweep_probes(self._context.warehouse.store, prefix=f"{root}/" if root else "")
        except IceDBError as error:
            get_logger().warning("probes_not_swept", error=type(error).__name__, mitigation="next sweep")
            return
        self._metrics.record_deletes("leftover", deleted_count=len(done.keys), failed=done.failed)


def _describe(result: OrphanResult, leftovers: LeftoverResult) -> dict[str, Any]:
    return {
        "deleted_orphans": len(result.deleted),
        "failed_orphans": len(result.failed),
        "waiting_orphans": result.orphan_count - len(result.deleted) - len(result.failed),
        "held_orphans": result.held_count,
        "lost_commits": len(result.lost),
        "young_orphans": result.young_count,
        "orphan_share": round(result.share, 4),
        "contended": result.is_contended,
        "unknown_objects": result.unknown_count,
        "deleted_leftovers": sum(leftovers.deleted.values()),
        "failed_leftovers": len(leftovers.failed),
    }


def warn_of_failures(event: str, failed: Sequence[FailedDelete]) -> None:
    """Log deletes that failed: how many, and one of them."""
    if failed:
        first = failed[0]
        get_logger().warning(
            event,
            count=len(failed),
            key=first.key,
            kind=first.kind,
            reason=first.reason,
            mitigation="next run",
        )


def _warn_of_orphans(result: OrphanResult) -> None:
    warn_of_failures("orphans_not_deleted", result.failed)
    if result.unknown:
        get_logger().warning(
            "unknown_objects_kept",
            count=result.unknown_count,
            key=result.unknown[0],
            mitigation="kept; look at them",
        )
    if result.future:
        get_logger().warning(
            "orphans_from_the_future",
            count=len(result.future),
            key=result.future[0],
            mitigation="kept; the clock of the store, or of who wrote them, was wrong",
        )
    if result.held_count:
        get_logger().warning(
            "orphans_held",
            count=result.held_count,
            size_bytes=result.held_bytes,
            share=result.share,
            max_share=result.max_share,
            mitigation="kept until a person has looked whether the log is whole",
        )
    if result.lost:
        get_logger().warning(
            "commits_lost",
            count=len(result.lost),
            name=result.lost[0],
            mitigation="orphans are kept until a person has decided",
        )
    if result.record_problem:
        get_logger().warning(
            "orphan_record_unusable", problem=result.record_problem, mitigation="orphans wait a grace period longer"
        )


def _warn_of_leftovers(result: LeftoverResult) -> None:
    warn_of_failures("leftovers_not_deleted", result.failed)
    for kind, problem in result.problems.items():
        get_logger().warning("leftovers_not_swept", kind=kind, problem=problem, mitigation="next sweep")
