"""What the janitor counts."""

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Final

from icedb_log.cleaning.orphans import OrphanResult
from icedb_log.cleaning.vacuum import VacuumResult
from icedb_log.keys import TablePaths
from icedb_log.storage.object_store import FailedDelete
from icedb_service.metrics import WorkerMetrics, make_counter
from icedb_service.names import JANITOR_SWEEP, JANITOR_VACUUM
from prometheus_client import CollectorRegistry, Counter, Gauge

KINDS: Final = ("log_file", "data_file", "staged_batch", "orphan", "idempotency_key")
REWRITE_OUTCOMES: Final = ("stripped", "contended")


class JanitorMetrics(WorkerMetrics):
    """Counters of what was deleted, what could not be, and what waits."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__("janitor", package="icedb-janitor", tasks=(JANITOR_VACUUM, JANITOR_SWEEP), registry=registry)
        self.deleted = make_counter(
            self.registry,
            "icedb_janitor_deleted_objects_total",
            "Objects deleted; one that was gone already counts",
            label="kind",
            values=KINDS,
        )
        self.failed = make_counter(
            self.registry,
            "icedb_janitor_failed_deletes_total",
            "Deletes that the store refused; the next run tries again",
            label="kind",
            values=KINDS,
        )
        self.rewrites = make_counter(
            self.registry,
            "icedb_janitor_log_rewrites_total",
            "Log files stripped of markers of deleted files; contended: changed meanwhile, left for the next run",
            label="outcome",
            values=REWRITE_OUTCOMES,
        )
        self.waiting = Gauge(
            "icedb_janitor_waiting_objects",
            "Dead objects that a grace period or a lease keeps",
            ("table",),
            registry=self.registry,
        )
        self.young_orphans = Gauge(
            "icedb_janitor_young_orphan_files",
            "Unnamed data files that are not old enough to be deleted, at the last orphan sweep",
            ("table",),
            registry=self.registry,
        )
        self.orphan_sweeps = Counter(
            "icedb_janitor_orphan_sweeps_total",
            "Searches for data files that no log file names",
            registry=self.registry,
        )

    def record_vacuum(self, paths: TablePaths, result: VacuumResult) -> None:
        """Count one vacuum."""
        self.deleted.labels("log_file").inc(len(result.deleted_logs))
        self.deleted.labels("data_file").inc(len(result.deleted_data))
        for kind, count in kinds_of_failures(paths, result.failed).items():
            self.failed.labels(kind).inc(count)
        self.rewrites.labels("stripped").inc(result.stripped_count)
        self.rewrites.labels("contended").inc(result.contended_count)
        self.waiting.labels(paths.name).set(len(result.waiting))

    def record_orphans(self, paths: TablePaths, result: OrphanResult) -> None:
        """Count one orphan sweep."""
        self.orphan_sweeps.inc()
        self.deleted.labels("orphan").inc(len(result.deleted))
        self.failed.labels("orphan").inc(len(result.failed))
        self.young_orphans.labels(paths.name).set(result.young_count)

    def record_keys(self, *, deleted_count: int, failed_count: int) -> None:
        """Count the producers' keys of one sweep that were forgotten."""
        self.deleted.labels("idempotency_key").inc(deleted_count)
        self.failed.labels("idempotency_key").inc(failed_count)


def kinds_of_failures(paths: TablePaths, failed: Iterable[FailedDelete]) -> Tally[str]:
    """Count failed deletes by what they were."""
    kinds: Tally[str] = Tally()
    for each in failed:
        if each.key.startswith(paths.log_prefix):
            kinds["log_file"] += 1
        elif each.key.startswith(paths.staging_prefix):
            kinds["staged_batch"] += 1
        else:
            kinds["data_file"] += 1
    return kinds
