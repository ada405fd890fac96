"""What the janitor counts."""

from collections import Counter as Tally
from collections.abc import Collection, Iterable
from typing import Final, get_args

from icedb_log.clean.deletion import AuditStep, Kind
from icedb_log.clean.leftovers import LeftoverResult
from icedb_log.clean.orphans import OrphanGuard, OrphanResult
from icedb_log.clean.vacuum import VacuumResult
from icedb_log.holds.guards import Guard
from icedb_log.keys import TablePaths, find_kind
from icedb_log.names import JANITOR_ORPHANS, JANITOR_PURGE, JANITOR_SWEEP, JANITOR_VACUUM
from icedb_log.store.object_store import DELETE_FAILURES, FailedDelete
from icedb_log.trash.purge import PurgeResult
from icedb_service.metrics import OPEN, WorkerMetrics
from prometheus_client import Gauge

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
GUARDS: Final[tuple[Guard, ...]] = get_args(Guard)
AUDIT_STEPS: Final[tuple[AuditStep, ...]] = get_args(AuditStep)


class JanitorMetrics(WorkerMetrics):
    """Counters of what was deleted, what could not be, and what waits."""

    def __init__(self) -> None:
        super().__init__(
            "janitor",
            package="icedb-janitor",
            tasks=(JANITOR_VACUUM, JANITOR_ORPHANS, JANITOR_PURGE, JANITOR_SWEEP),
        )
        make = self.make
        self.deleted = make.counter(
            "icedb_janitor_deleted_objects_total", "Objects deleted; one that was gone already counts", kind=KINDS
        )
        self.failed = make.counter(
            "icedb_janitor_failed_deletes_total",
            "Deletes that failed, by kind of object and by reason; the next run tries again",
            kind=KINDS,
            reason=DELETE_FAILURES,
        )
        self.audit_failures = make.counter(
            "icedb_janitor_audit_failures_total",
            "Audit objects that could not be written; announce: the run stopped and nothing was deleted; conclude: "
            "the outcome of the deletes is not written down",
            step=AUDIT_STEPS,
        )
        self._failing_since_ms: dict[str, int] = {}
        self._make_gauges()

    def _make_gauges(self) -> None:
        self.waiting = self._by_table(
            "waiting_objects", "Dead objects that are kept for now, by the guard that keeps them", "guard"
        )
        self.waiting_orphans = self._by_table(
            "waiting_orphan_files",
            "Unnamed data files that are kept for now, at the last orphan sweep; age: too young; share: too much of "
            "the table is unnamed, a person has to look",
            "guard",
        )
        self.lost_commits = self._by_table(
            "lost_commits",
            "Commits that landed and whose log files are gone, at the last vacuum",
        )
        self.unknown = self._by_table(
            "unknown_objects", "Objects of no known kind among a table's, at the last orphan sweep; kept"
        )
        self.failing_since = self._by_table(
            "failing_since_timestamp_seconds",
            "Since when each vacuum or purge of the table has had deletes that failed, unix time; 0: the last had none",
        )

        self.held_back = self._by_table(
            "clock_held_back_seconds",
            "How far the store's clock has run ahead of what can have passed since earlier vacuums; ages are measured "
            "without it, for a grace period or two",
        )
        self.purging = self._by_table(
            "purge_unfinished_timestamp_seconds",
            "When a run of the table's purge last ended before the purge did, unix time",
        )

    def _by_table(self, name: str, meaning: str, *labels: str) -> Gauge:
        gauge = self.make.gauge(f"icedb_janitor_{name}", meaning, table=OPEN, **dict.fromkeys(labels, OPEN))
        self.table_gauges.append(gauge)
        return gauge

    def forget_tables(self, kept: Collection[str]) -> None:
        """Let the series end of tables that are not there any more, and what was remembered of their failures."""
        super().forget_tables(kept)
        for table in self._failing_since_ms.keys() - kept:
            self._failing_since_ms.pop(table, None)

    def record_vacuum(self, paths: TablePaths, result: VacuumResult, *, now_ms: int) -> None:
        """Count one vacuum."""
        self.deleted.labels("log_file").inc(len(result.deleted_logs))
        self.deleted.labels("data_file").inc(len(result.deleted_data))
        self.deleted.labels("staged_batch").inc(len(result.deleted_copies))
        for (kind, reason), count in kinds_of_failures(paths, result.failed).items():
            self.failed.labels(kind, reason).inc(count)
        self._record_failing(paths, has_failed=bool(result.failed), now_ms=now_ms)
        self.held_back.labels(paths.name).set(result.held_back_ms / 1000)
        self.lost_commits.labels(paths.name).set(len(result.lost))
        held = Tally(item.guard for item in result.waiting)
        for guard in GUARDS:
            self.waiting.labels(paths.name, guard).set(held[guard])

    def record_orphans(self, paths: TablePaths, result: OrphanResult) -> None:
        """Count one orphan sweep."""
        self.record_deletes("orphan", deleted_count=len(result.deleted), failed=result.failed)
        counts: dict[OrphanGuard, int] = {"age": result.walk.young_tally.count, "share": result.held.count}
        for guard, count in counts.items():
            self.waiting_orphans.labels(paths.name, guard).set(count)
        self.unknown.labels(paths.name).set(result.walk.unknown_count)

    def record_purge(self, paths: TablePaths, result: PurgeResult, *, now_ms: int) -> None:
        """Count one run of a purge; arguments as :meth:`record_vacuum`."""
        self.record_deletes("dropped_table", deleted_count=result.deleted_count, failed=result.failed)
        self._record_failing(paths, has_failed=bool(result.failed), now_ms=now_ms)
        if result.state == "purging":
            self.purging.labels(paths.name).set(now_ms / 1000)

    def record_leftovers(self, paths: TablePaths, result: LeftoverResult) -> None:
        """Count the outcome of a table's leftovers."""
        for kind, count in result.deleted.items():
            self.deleted.labels(kind).inc(count)
        for each in result.failed:
            found = find_kind(paths, each.key)
            self.failed.labels(found if found in KINDS else "leftover", each.kind).inc()

    def record_deletes(self, kind: Kind, *, deleted_count: int, failed: Iterable[FailedDelete]) -> None:
        """Count deletes of one kind of object."""
        self.deleted.labels(kind).inc(deleted_count)
        for reason, count in Tally(each.kind for each in failed).items():
            self.failed.labels(kind, reason).inc(count)

    def _record_failing(self, paths: TablePaths, *, has_failed: bool, now_ms: int) -> None:
        if has_failed:
            since_ms = self._failing_since_ms.setdefault(paths.name, now_ms)
        else:
            since_ms = 0
            self._failing_since_ms.pop(paths.name, None)
        self.failing_since.labels(paths.name).set(since_ms / 1000)


def kinds_of_failures(paths: TablePaths, failed: Iterable[FailedDelete]) -> Tally[tuple[Kind, str]]:
    """Count failed deletes of a vacuum by what the objects were, and by reason."""
    return Tally((_kind_of(paths, each.key), each.kind) for each in failed)


def _kind_of(paths: TablePaths, key: str) -> Kind:
    if key.startswith(paths.log_prefix):
        return "log_file"
    return "staged_batch" if key.startswith(paths.staging_prefix) else "data_file"
