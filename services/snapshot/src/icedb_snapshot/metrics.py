"""The metrics of the snapshot service, and the figures of each table that it exports from the log.

Owns every metric name of this service. Label values come from closed sets (method, code) or from the tables of the
warehouse; a table that is gone loses its series.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from icedb_log.ingest.pressure import LEVELS
from icedb_log.serving.status import TableStatus
from icedb_log.units import GIB, SECOND_MS
from icedb_proto import snapshot_pb2
from icedb_service.metrics import OPEN, MetricMaker, ProcessMetrics
from prometheus_client import CollectorRegistry

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
DAYS_A_MONTH: Final = 30
CALL_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class SnapshotMetrics(ProcessMetrics):
    """Counters of the server itself."""

    def __init__(self) -> None:
        super().__init__("snapshot", package="icedb-snapshot")
        make = self.make
        self._calls = make.counter(
            "icedb_snapshot_requests_total",
            "Calls that ended, streams as well, by method and gRPC status code.",
            method=METHODS.values(),
            code=CODES,
        )
        self._durations = make.histogram(
            "icedb_snapshot_request_duration_seconds",
            "Time from the handler's start to its end; of a stream, to its last message.",
            buckets=CALL_BUCKETS_S,
            method=METHODS.values(),
        )
        self._refreshes = make.histogram(
            "icedb_snapshot_refresh_duration_seconds",
            "Time of one successful read and fold of a table's log.",
            buckets=CALL_BUCKETS_S,
        )
        self._answers = make.counter(
            "icedb_snapshot_answers_total",
            "Answers by where the knowledge came from: memory (within the caller's staleness) or a read of the log.",
            source=("memory", "log"),
        )
        self._answer_bytes = make.counter("icedb_snapshot_answer_bytes_total", "Bytes of all answers, serialized.")
        self._watchers = make.gauge("icedb_snapshot_watchers", "Streams of WatchSnapshots that are open.")
        self._watched_tables = make.gauge("icedb_snapshot_watched_tables", "Tables whose logs are listed for watchers.")
        self._looks = make.counter(
            "icedb_snapshot_watch_looks_total",
            "Looks at watched tables after the first, by what they were for: a commit was announced through Redis, or "
            "the interval was over.",
            cause=("announced", "interval"),
        )
        self._hears_commits = make.gauge(
            "icedb_snapshot_hears_commits",
            "1 while commits are announced through Redis; 0: watched tables are listed each interval.",
        )
        self._events = make.counter("icedb_snapshot_events_total", "Messages sent to watchers, all watchers together.")
        self._from_memory = self._answers.labels("memory")
        self._from_log = self._answers.labels("log")
        self._exporter_success = make.gauge(
            "icedb_snapshot_exporter_last_success_timestamp_seconds",
            "When the exporter last read every table that is not halted; 0 before the first time.",
        )
        self._exporter_rounds = make.histogram(
            "icedb_snapshot_exporter_round_duration_seconds",
            "Time of one round over all tables.",
            buckets=CALL_BUCKETS_S,
        )
        self._exporter_failures = make.counter(
            "icedb_snapshot_exporter_failures_total",
            "Failures by what could not be read: the list of tables (list), a table (table), or it is halted (halted).",
            what=("list", "table", "halted", "other"),
        )
        self._exporter_tables = make.gauge("icedb_snapshot_exporter_tables", "Tables found in the last round.")

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

    def observe_watch_look(self, *, is_announced: bool) -> None:
        """Count one look at a watched table."""
        self._looks.labels("announced" if is_announced else "interval").inc()

    def show_heard(self, hears_commits: bool) -> None:  # noqa: FBT001 - a callback with one meaning
        """Publish whether commits are heard."""
        self._hears_commits.set(1 if hears_commits else 0)

    def observe_event(self) -> None:
        """Count one message to a watcher."""
        self._events.inc()

    def observe_answer(self, *, size_bytes: int, is_from_memory: bool) -> None:
        """Count one answer."""
        self._answer_bytes.inc(size_bytes)
        (self._from_memory if is_from_memory else self._from_log).inc()

    def observe_exporter_failure(self, what: str) -> None:
        """Count a failure of the exporter; ``what`` is ``list``, ``table``, ``halted`` or ``other``."""
        self._exporter_failures.labels(what).inc()

    def observe_exporter_round(self, *, table_count: int, duration_ms: int, success_ms: int | None) -> None:
        """Publish the outcome of a round; ``success_ms`` is its time, or ``None`` when something was not read."""
        self._exporter_tables.set(table_count)
        self._exporter_rounds.observe(duration_ms / SECOND_MS)
        if success_ms is not None:
            self._exporter_success.set(success_ms / SECOND_MS)


FIGURES: Final[Mapping[str, tuple[str | Callable[[TableStatus], float | None], str]]] = {
    "merge_lag_seconds": (
        "merge_lag_ms",
        "Age of the oldest data file that the merge policy would merge now; 0: none.",
    ),
    "merge_lag_files": ("merge_lag_files", "Data files that the merge policy would merge now."),
    "merge_lag_bytes": ("merge_lag_bytes", "Bytes of the data files it would merge now."),
    "data_files": ("live_files", "Live data files."),
    "log_files": ("log_files", "Objects below _log; the format allows less than 1,000."),
    "live_bytes": ("live_bytes", "Bytes of live data files."),
    "live_rows": ("live_rows", "Rows of live data files; absent when some file does not say."),
    "staged_batches": ("staged_batches", "Accepted batches that wait for a flush."),
    "staged_bytes": ("staged_bytes", "Bytes of accepted batches that wait for a flush, as staged."),
    "staged_lag_seconds": (
        "staged_lag_ms",
        "How long the oldest accepted batch has waited for a flush; 0: none waits.",
    ),
    "pressure_level": (
        lambda status: LEVELS.index(status.pressure.level),
        "Back-pressure; 0: none, 1: flushes come less often, 2: front ends refuse batches, too.",
    ),
    "flushes_failing": (
        lambda status: 1 if status.failing else 0,
        "1 while flushes of the table fail, so that accepted batches wait: icedb status says why.",
    ),
    "pressure_stretch": ("pressure.stretch", "Factor by which back-pressure stretches flush intervals."),
    "quarantined_batches": (
        "quarantined_batches",
        "Batches that wait for a person, whole or with some of their rows.",
    ),
    "bad_row_batches": ("bad_row_batches", "Batches of which only bad rows wait for a person."),
    "tombstoned_files": ("tombstoned_files", "Dead data files that the log still names."),
    "open_erasures": ("open_erasures", "Erasures that have not ended."),
    "oldest_erasure_seconds": (
        "oldest_erasure_ms",
        "How long ago the oldest open erasure was asked for; 0: none is open.",
    ),
    "lost_commits": ("lost_commits", "Commits that landed and whose log files are gone: their rows are missing."),
    "leases": ("leases", "Leases of readers that last."),
    "oldest_lease_seconds": (
        "oldest_lease_ms",
        "How far back the oldest leased time lies: what died since cannot be deleted; 0: no lease lasts.",
    ),
    "iceberg_held_back": (
        lambda status: 1 if status.held_back else 0,
        "1 while engines that speak Iceberg may be shown an older state than the newest: icedb status says why.",
    ),
    "data_grace_seconds": ("config.data_grace_ms", "How long a tombstoned data file stays."),
    "orphan_age_seconds": ("config.orphan_age_ms", "How long a data file stays that no log file names."),
    "log_grace_seconds": ("config.log_grace_ms", "How long a tombstoned log file stays."),
    "view_lag_seconds": (
        "view.lag_ms",
        "Of a view: how long the oldest commit that it has to take has waited; 0: none waits. Absent for tables.",
    ),
    "view_waiting_commits": (
        "view.waiting_commits",
        "Of a view: commits of its source that it has still to take. Absent for tables.",
    ),
    "view_refused_commits": (
        "view.refused_commits",
        "Of a view: commits of its source that its query could not take, since ever. Absent for tables.",
    ),
    "last_commit_timestamp_seconds": (
        lambda status: status.last_commit_ms / SECOND_MS if status.last_commit_ms else None,
        "Time of the newest commit; absent before the first one.",
    ),
}
"""What a table's log says: the metric's name without ``icedb_table_``, where its value stands, and its meaning."""


def value_of(status: TableStatus, where: str | Callable[[TableStatus], float | None]) -> float | None:
    """Return what stands at a place among a table's figures, or is made of them; ``None``: there is none now.

    Times become seconds, and of several things it is how many.
    """
    if callable(where):
        return where(status)
    found: Any = status
    for name in where.split("."):
        found = None if found is None else getattr(found, name)
    if found is None or not where.endswith("_ms"):
        return len(found) if isinstance(found, tuple) else found
    return float(found / SECOND_MS)


class TableMetrics:
    """The figures of each table: there also when every worker is dead."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self._figures = [
            (make.gauge(f"icedb_table_{name}", meaning, table=OPEN), where)
            for name, (where, meaning) in FIGURES.items()
        ]
        self._halted = make.gauge(
            "icedb_table_halted", "1 while the table's log cannot be trusted, or its flushes halt.", table=OPEN
        )
        self._prices = make.gauge(
            "icedb_store_price_dollars",
            "What one request of a class costs, or a byte that is stored for a day (ICEDB_STORE_PRICES)",
            price=("put", "get", "stored"),
        )
        self._budget = make.gauge(
            "icedb_table_cost_budget_dollars",
            "What one table may cost a day; 0: no budget (ICEDB_TABLE_COST_BUDGET_DOLLARS)",
        )
        self._read = make.gauge(
            "icedb_table_read_timestamp_seconds", "When these figures were read, by the exporter's clock.", table=OPEN
        )

    def show_prices(self, prices: Mapping[str, float], *, budget: float) -> None:
        """Publish what the store asks for, and what a table may cost a day, dollars.

        Args:
            prices: As :data:`icedb_snapshot.settings.S3_STANDARD`.
            budget: Of each table; 0: none.
        """
        self._prices.labels("put").set(prices["put_1000"] / 1000)
        self._prices.labels("get").set(prices["get_1000"] / 1000)
        self._prices.labels("stored").set(prices["stored_gb_month"] / GIB / DAYS_A_MONTH)
        self._budget.set(budget)

    def show(self, table: str, status: TableStatus, *, now_ms: int) -> None:
        """Publish a table's figures."""
        self._halted.labels(table).set(1 if status.halted else 0)
        for gauge, where in self._figures:
            value = value_of(status, where)
            if value is None:
                gauge.remove_by_labels({"table": table})
            else:
                gauge.labels(table).set(value)
        self._read.labels(table).set(now_ms / SECOND_MS)

    def show_halted(self, table: str) -> None:
        """Publish that a table is halted. Its other figures keep their last values, with the time they were read."""
        self._halted.labels(table).set(1)

    def drop(self, table: str) -> None:
        """Remove every series of a table that is gone."""
        for gauge in (*(gauge for gauge, _ in self._figures), self._halted, self._read):
            gauge.remove_by_labels({"table": table})
