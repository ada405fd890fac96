"""The metrics of the snapshot service, and the figures of each table that it exports from the log.

Owns every metric name of this service. Label values come from closed sets (method, code) or from the tables of the
warehouse; a table that is gone loses its series.
"""

from typing import Final

from icedb_log.ingest.pressure import LEVELS
from icedb_log.table.status import TableStatus
from icedb_log.units import SECOND_MS
from icedb_proto import snapshot_pb2
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SERVICE: Final = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"]
HEALTH_METHOD: Final = "/grpc.health.v1.Health/Check"
METHODS: Final = {f"/{_SERVICE.full_name}/{method.name}": method.name for method in _SERVICE.methods} | {
    HEALTH_METHOD: "Check"
}
CODES: Final = (
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "UNAVAILABLE",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "INTERNAL",
)
CALL_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class SnapshotMetrics:
    """Counters of the server itself.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "icedb_snapshot_requests_total",
            "Calls that ended, streams as well, by method and gRPC status code.",
            ("method", "code"),
            registry=registry,
        )
        self._durations = Histogram(
            "icedb_snapshot_request_duration_seconds",
            "Time from the handler's start to its end; of a stream, to its last message.",
            ("method",),
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        self._refreshes = Histogram(
            "icedb_snapshot_refresh_duration_seconds",
            "Time of one successful read and fold of a table's log.",
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        self._answers = Counter(
            "icedb_snapshot_answers_total",
            "Answers by where the knowledge came from: memory (within the caller's staleness) or a read of the log.",
            ("source",),
            registry=registry,
        )
        self._answer_bytes = Counter(
            "icedb_snapshot_answer_bytes_total", "Bytes of all answers, serialized.", registry=registry
        )
        self._watchers = Gauge("icedb_snapshot_watchers", "Streams of WatchSnapshots that are open.", registry=registry)
        self._watched_tables = Gauge(
            "icedb_snapshot_watched_tables", "Tables whose logs are listed because somebody watches.", registry=registry
        )
        self._events = Counter(
            "icedb_snapshot_events_total", "Messages sent to watchers, all watchers together.", registry=registry
        )
        for method in METHODS.values():
            self._durations.labels(method)
            for code in CODES:
                self._calls.labels(method, code)
        self._from_memory = self._answers.labels("memory")
        self._from_log = self._answers.labels("log")

    def observe_call(self, method: str, code: str, duration_ms: int) -> None:
        """Count one call. Methods that are not ours count as ``other``."""
        name = METHODS.get(method, "other")
        self._calls.labels(name, code).inc()
        self._durations.labels(name).observe(duration_ms / SECOND_MS)

    def observe_refresh(self, duration_ms: int) -> None:
        """Count one successful read of a table's log."""
        self._refreshes.observe(duration_ms / SECOND_MS)

    def show_watchers(self, *, watchers: int, tables: int) -> None:
        """Publish how many watch, and how many tables are polled for them."""
        self._watchers.set(watchers)
        self._watched_tables.set(tables)

    def observe_event(self) -> None:
        """Count one message to a watcher."""
        self._events.inc()

    def observe_answer(self, *, size_bytes: int, is_from_memory: bool) -> None:
        """Count one answer."""
        self._answer_bytes.inc(size_bytes)
        (self._from_memory if is_from_memory else self._from_log).inc()


class TableMetrics:
    """The figures of each table, computed from its log: there also when every worker is dead.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(what: str, text: str) -> Gauge:
            return Gauge(f"icedb_table_{what}", text, ("table",), registry=registry)

        self._merge_lag_seconds = gauge(
            "merge_lag_seconds", "Age of the oldest data file that the merge policy would merge now; 0: none."
        )
        self._merge_lag_files = gauge("merge_lag_files", "Data files that the merge policy would merge now.")
        self._merge_lag_bytes = gauge("merge_lag_bytes", "Bytes of the data files it would merge now.")
        self._data_files = gauge("data_files", "Live data files.")
        self._log_files = gauge("log_files", "Objects below _log; the format allows less than 1,000.")
        self._live_bytes = gauge("live_bytes", "Bytes of live data files.")
        self._live_rows = gauge("live_rows", "Rows of live data files; absent when some file does not say.")
        self._staged_batches = gauge("staged_batches", "Accepted batches that wait for a flush.")
        self._staged_bytes = gauge("staged_bytes", "Bytes of accepted batches that wait for a flush, as staged.")
        self._staged_lag_seconds = gauge(
            "staged_lag_seconds", "How long the oldest accepted batch has waited for a flush; 0: none waits."
        )
        self._pressure_level = gauge(
            "pressure_level", "Back-pressure; 0: none, 1: flushes come less often, 2: front ends refuse batches, too."
        )
        self._pressure_stretch = gauge("pressure_stretch", "Factor by which back-pressure stretches flush intervals.")
        self._quarantined_batches = gauge(
            "quarantined_batches", "Batches that wait for a person, whole or with some of their rows."
        )
        self._bad_row_batches = gauge("bad_row_batches", "Batches of which only bad rows wait for a person.")
        self._tombstoned_files = gauge("tombstoned_files", "Dead data files that the log still names.")
        self._open_erasures = gauge("open_erasures", "Erasures that have not ended.")
        self._oldest_erasure_seconds = gauge(
            "oldest_erasure_seconds", "How long ago the oldest open erasure was asked for; 0: none is open."
        )
        self._lost_commits = gauge(
            "lost_commits", "Commits that landed and whose log files are gone: their rows are missing."
        )
        self._leases = gauge("leases", "Leases of readers that last.")
        self._oldest_lease_seconds = gauge(
            "oldest_lease_seconds",
            "How far back the oldest leased time lies: what died since cannot be deleted; 0: no lease lasts.",
        )
        self._halted = gauge("halted", "1 while the table's log cannot be trusted, or its flushes halt.")
        self._data_grace_seconds = gauge("data_grace_seconds", "How long a tombstoned data file stays.")
        self._orphan_age_seconds = gauge("orphan_age_seconds", "How long a data file stays that no log file names.")
        self._log_grace_seconds = gauge("log_grace_seconds", "How long a tombstoned log file stays.")
        self._view_lag_seconds = gauge(
            "view_lag_seconds",
            "Of a view: how long the oldest commit that it has to take has waited; 0: none waits. Absent for tables.",
        )
        self._view_waiting_commits = gauge(
            "view_waiting_commits", "Of a view: commits of its source that it has still to take. Absent for tables."
        )
        self._view_refused_commits = gauge(
            "view_refused_commits",
            "Of a view: commits of its source that its query could not take, since ever. Absent for tables.",
        )
        self._last_commit = gauge(
            "last_commit_timestamp_seconds", "Time of the newest commit; absent before the first one."
        )
        self._read = gauge("read_timestamp_seconds", "When these figures were read, by the exporter's clock.")
        self._figures = (
            self._merge_lag_seconds,
            self._merge_lag_files,
            self._merge_lag_bytes,
            self._data_files,
            self._log_files,
            self._live_bytes,
            self._live_rows,
            self._staged_batches,
            self._staged_bytes,
            self._staged_lag_seconds,
            self._pressure_level,
            self._pressure_stretch,
            self._quarantined_batches,
            self._bad_row_batches,
            self._tombstoned_files,
            self._open_erasures,
            self._oldest_erasure_seconds,
            self._lost_commits,
            self._leases,
            self._oldest_lease_seconds,
            self._view_lag_seconds,
            self._view_waiting_commits,
            self._view_refused_commits,
            self._data_grace_seconds,
            self._orphan_age_seconds,
            self._log_grace_seconds,
            self._last_commit,
            self._read,
        )

    def show(self, table: str, status: TableStatus, *, now_ms: int) -> None:
        """Publish a table's figures."""
        self._halted.labels(table).set(1 if status.halted else 0)
        self._merge_lag_seconds.labels(table).set(status.merge_lag_ms / SECOND_MS)
        self._merge_lag_files.labels(table).set(status.merge_lag_files)
        self._merge_lag_bytes.labels(table).set(status.merge_lag_bytes)
        self._data_files.labels(table).set(status.live_files)
        self._log_files.labels(table).set(status.log_files)
        self._live_bytes.labels(table).set(status.live_bytes)
        self._set_or_drop(self._live_rows, table, status.live_rows)
        self._staged_batches.labels(table).set(status.staged_batches)
        self._staged_bytes.labels(table).set(status.staged_bytes)
        self._staged_lag_seconds.labels(table).set(status.staged_lag_ms / SECOND_MS)
        self._pressure_level.labels(table).set(LEVELS.index(status.pressure.level))
        self._pressure_stretch.labels(table).set(status.pressure.stretch)
        self._quarantined_batches.labels(table).set(status.quarantined_batches)
        self._bad_row_batches.labels(table).set(status.bad_row_batches)
        self._tombstoned_files.labels(table).set(status.tombstoned_files)
        self._open_erasures.labels(table).set(status.open_erasures)
        self._oldest_erasure_seconds.labels(table).set(status.oldest_erasure_ms / SECOND_MS)
        self._lost_commits.labels(table).set(len(status.lost_commits))
        self._leases.labels(table).set(len(status.leases))
        self._oldest_lease_seconds.labels(table).set(status.oldest_lease_ms / SECOND_MS)
        view = status.view
        self._set_or_drop(self._view_lag_seconds, table, None if view is None else view.lag_ms / SECOND_MS)
        self._set_or_drop(self._view_waiting_commits, table, None if view is None else view.waiting_commits)
        self._set_or_drop(self._view_refused_commits, table, None if view is None else view.refused_commits)
        self._orphan_age_seconds.labels(table).set(status.config.orphan_age_ms / SECOND_MS)
        self._data_grace_seconds.labels(table).set(status.config.data_grace_ms / SECOND_MS)
        self._log_grace_seconds.labels(table).set(status.config.log_grace_ms / SECOND_MS)
        last_commit_s = status.last_commit_ms / SECOND_MS if status.last_commit_ms else None
        self._set_or_drop(self._last_commit, table, last_commit_s)
        self._read.labels(table).set(now_ms / SECOND_MS)

    def show_halted(self, table: str) -> None:
        """Publish that a table is halted. Its other figures keep their last values, with the time they were read."""
        self._halted.labels(table).set(1)

    def drop(self, table: str) -> None:
        """Remove every series of a table that is gone."""
        for figure in (*self._figures, self._halted):
            figure.remove_by_labels({"table": table})

    @staticmethod
    def _set_or_drop(figure: Gauge, table: str, value: float | None) -> None:
        if value is None:
            figure.remove_by_labels({"table": table})
        else:
            figure.labels(table).set(value)


class ExporterMetrics:
    """Whether the exporter of table figures itself is well.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._last_success = Gauge(
            "icedb_snapshot_exporter_last_success_timestamp_seconds",
            "When the exporter last read every table that is not halted; 0 before the first time.",
            registry=registry,
        )
        self._rounds = Histogram(
            "icedb_snapshot_exporter_round_duration_seconds",
            "Time of one round over all tables.",
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        self._failures = Counter(
            "icedb_snapshot_exporter_failures_total",
            "Failures by what could not be read: the list of tables (list), a table (table), or it is halted (halted).",
            ("what",),
            registry=registry,
        )
        self._tables = Gauge("icedb_snapshot_exporter_tables", "Tables found in the last round.", registry=registry)
        for what in ("list", "table", "halted", "other"):
            self._failures.labels(what)

    def observe_failure(self, what: str) -> None:
        """Count a failure; ``what`` is ``list``, ``table``, ``halted`` or ``other``."""
        self._failures.labels(what).inc()

    def observe_round(self, *, table_count: int, duration_ms: int, success_ms: int | None) -> None:
        """Publish the outcome of a round; ``success_ms`` is its time, or ``None`` when something was not read."""
        self._tables.set(table_count)
        self._rounds.observe(duration_ms / SECOND_MS)
        if success_ms is not None:
            self._last_success.set(success_ms / SECOND_MS)
