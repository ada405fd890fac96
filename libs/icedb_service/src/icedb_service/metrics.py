"""Metrics: one registry for a process, names ``icedb_<component>_<what>_<unit>[_total]``, labels from closed sets.

Every label value that is known beforehand exists from the start, so that a counter that never moved is 0 and not
absent. Tables are the only open label; there are as many as the warehouse has. ``docs/metrics.md`` lists every metric;
a test compares. Refusals are counted without the name of a caller or a table. Retries and quorums hide failures of
the store and of Redis from callers and outcomes: here each failed request is seen.
"""

import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from typing import Final, Literal, TypeVar, get_args

from icedb_log.names import Component
from icedb_log.store.request_costs import PRICES, RequestCost, listen_to_costs
from icedb_log.store.request_failures import OPERATIONS, REASONS, Operation, Reason, listen_to_failures
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

M = TypeVar("M", Counter, Gauge, Histogram)

OPEN: Final[Sequence[str]] = ()
"""For a label whose values are not known beforehand."""


def make_registry() -> CollectorRegistry:
    """Return a registry with the usual process and interpreter metrics, and nothing else."""
    # A time of birth for each counter doubles a scrape and tells nothing.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class MetricMaker:
    """Makes metrics in one registry. A label is a keyword with its values, ``OPEN`` if these are not known."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, meaning: str, **labels: Iterable[str]) -> Counter:
        """Return a counter."""
        return _fill(Counter(name, meaning, tuple(labels), registry=self._registry), labels)

    def gauge(self, name: str, meaning: str, **labels: Iterable[str]) -> Gauge:
        """Return a gauge."""
        return _fill(Gauge(name, meaning, tuple(labels), registry=self._registry), labels)

    def histogram(self, name: str, meaning: str, *, buckets: Sequence[float], **labels: Iterable[str]) -> Histogram:
        """Return a histogram."""
        return _fill(Histogram(name, meaning, tuple(labels), buckets=buckets, registry=self._registry), labels)


def _fill(metric: M, labels: Mapping[str, Iterable[str]]) -> M:
    """Let every combination of label values exist from the start, if all of them are known."""
    if labels:
        for values in product(*labels.values()):
            metric.labels(*values)
    return metric


Endpoint = Literal["grpc", "http", "webhook", "task", "s3", "iceberg"]
Refusal = Literal["no_credentials", "bad_credentials", "not_granted", "hidden", "rate", "share"]

ENDPOINTS: Final[tuple[Endpoint, ...]] = ("grpc", "http", "webhook", "task", "s3", "iceberg")
REFUSALS: Final[tuple[Refusal, ...]] = ("no_credentials", "bad_credentials", "not_granted", "hidden", "rate", "share")


class AccessMetrics:
    """Counters and gauges of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.denied = make.counter(
            "icedb_access_denied_total",
            "Calls that were refused; hidden: of a table that the caller may not know of; rate: called too often; "
            "share: would hold more than half of a pool",
            door=ENDPOINTS,
            reason=REFUSALS,
        )
        self.broken = make.gauge(
            "icedb_access_file_broken",
            "1 while the access file, or one that it names, cannot be used; what was read before goes on",
        )
        self.certificate_expiry = make.gauge(
            "icedb_access_certificate_expiry_timestamp_seconds",
            "When the certificate that this process serves ends, unix time; 0: no TLS, or its file cannot be read",
        )


RedisUse = Literal["locks", "queue"]
REDIS_USES: Final[tuple[RedisUse, ...]] = ("locks", "queue")


Cause = Literal["staging", "flush", "merge", "janitor", "readers", "other"]
CAUSES: Final[Mapping[Component, Cause]] = {
    "frontend": "staging",
    "enqueue": "staging",
    "ingest": "flush",
    "ingest-large": "flush",
    "merge": "merge",
    "janitor": "janitor",
    "snapshot": "readers",
    "gateway": "readers",
    "console": "other",
}
"""What a service's requests to the store are for: each process has one cause, whatever its tasks do."""


class DependencyMetrics:
    """Counters of one process.

    Args:
        registry: Where they are.
        cause: What its requests to the store are for.
    """

    def __init__(self, registry: CollectorRegistry, cause: Cause = "other") -> None:
        make = MetricMaker(registry)
        self._cause = cause
        self._requests = make.counter(
            "icedb_store_requests_total",
            "Requests that S3 answered and asks money for, also those that were sent again; put: also copies, parts of "
            "uploads and listings; get: also of metadata; delete: free. Table: empty for those of no table",
            cause=tuple(dict.fromkeys(CAUSES.values())),
            table=OPEN,
            price=PRICES,
        )
        self._bytes = make.counter(
            "icedb_store_request_bytes_total",
            "Bytes in bodies of these requests (sent) and of their answers (received)",
            cause=tuple(dict.fromkeys(CAUSES.values())),
            table=OPEN,
            direction=("sent", "received"),
        )
        self.of_tables: Final = (self._requests, self._bytes)
        """Counters with the label ``table``."""
        self._store = make.counter(
            "icedb_store_request_failures_total",
            "Requests to the store that failed, also those that were sent again and went well; unreachable: no "
            "connection, broken: it ended before the whole answer, throttled: 429 or 503",
            operation=OPERATIONS,
            reason=REASONS,
        )
        self._redis = make.counter(
            "icedb_redis_request_failures_total",
            "Requests to Redis that were not answered; locks: each master of the locks counts by itself, queue: "
            "wake-ups of workers",
            use=REDIS_USES,
        )

    def watch_store(self) -> None:
        """Count the requests of this process from now on. Called once, by whoever runs the process."""
        listen_to_failures(self._count_store)
        listen_to_costs(self.count_cost)

    def count_cost(self, cost: RequestCost) -> None:
        """Count requests that were answered."""
        self._requests.labels(self._cause, cost.table, cost.price).inc(cost.count)
        self._bytes.labels(self._cause, cost.table, "sent").inc(cost.sent_bytes)
        self._bytes.labels(self._cause, cost.table, "received").inc(cost.received_bytes)

    def counter_of(self, use: RedisUse) -> Callable[[], None]:
        """Return what counts one failed request to Redis; for :func:`icedb_service.redis_clients.open_redis`."""
        return self._redis.labels(use).inc

    def _count_store(self, operation: Operation, reason: Reason) -> None:
        self._store.labels(operation, reason).inc()


WakeCounter = Counter

Outcome = Literal[
    "done",
    "idle",
    "busy",
    "lock_lost",
    "fenced",
    "conflict",
    "outcome_unknown",
    "unavailable",
    "halted",
    "not_found",
    "refused",
    "failed",
]
"""What can become of a run; see :class:`icedb_service.runs.TaskRunner`."""

OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

ENGINE_FAILURES: Final = ("not_opened", "died")
INTERRUPT_REASONS: Final = ("time_limit", "stopped", "no_executors")
LOCK_OUTCOMES: Final = ("acquired", "busy", "lost", "unavailable")
WAKE_OUTCOMES: Final = ("sent", "collapsed", "failed")
DIRECTIONS: Final = ("ahead", "back")
DURATION_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)


class ClockMetrics:
    """What one process shows of its clock."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.skew = make.gauge(
            "icedb_clock_skew_seconds",
            "How far this host's wall clock is ahead of the store's, by the store's last answers; negative: behind",
        )
        self.jumps = make.counter(
            "icedb_clock_jumps_total",
            "Times that this host's wall clock was set, against the monotonic one, by half a second or more",
            direction=DIRECTIONS,
        )


class ProcessMetrics:
    """What every process of a service counts."""

    def __init__(self, component: Component, *, package: str) -> None:
        self.component = component
        self.registry = make_registry()
        self.make = MetricMaker(self.registry)
        self.access = AccessMetrics(self.registry)
        self.clock = ClockMetrics(self.registry)
        self.dependencies = DependencyMetrics(self.registry, CAUSES[component])
        info = self.make.gauge(f"icedb_{component}_build_info", "Release that runs", version=OPEN, python=OPEN)
        info.labels(version(package), platform.python_version()).set(1)


_FIRST_ERROR: Final = 400
_FIRST_FAILURE: Final = 500


def outcome_of(status: int, by_status: Mapping[int, str]) -> str:
    """Return what a status of HTTP makes of its request; ``by_status`` has those with an outcome of their own."""
    if status in by_status:
        return by_status[status]
    if status >= _FIRST_FAILURE:
        return "failed"
    return "bad_request" if status >= _FIRST_ERROR else "ok"


class WorkerMetrics(ProcessMetrics):
    """What every Celery worker counts.

    Args:
        component: Which worker.
        package: Its package, of which it is a release.
        tasks: Names of its tasks.
        has_engine: Whether it opens an engine that can fail. What is counted of one that cannot is not served.
    """

    def __init__(self, component: Component, *, package: str, tasks: Sequence[str], has_engine: bool = False) -> None:
        super().__init__(component, package=package)
        start, make = f"icedb_{component}", self.make
        self.runs = make.counter(f"{start}_runs_total", "Runs of tasks by outcome", task=tasks, outcome=OUTCOMES)
        self.run_duration = make.histogram(
            f"{start}_run_duration_seconds",
            "Duration of a run, whatever its outcome",
            buckets=DURATION_BUCKETS_S,
            task=tasks,
        )
        self.locks = make.counter(
            f"{start}_lock_attempts_total",
            "Requests for locks by outcome; a lost lock had been acquired before",
            outcome=LOCK_OUTCOMES,
        )
        self.wakes = make.counter(
            f"{start}_wakes_total",
            "Wake-ups sent to workers; collapsed: the same one was on its way",
            outcome=WAKE_OUTCOMES,
        )
        self.halted = make.gauge(
            f"{start}_halted", "1 while this worker cannot work on the table until a person looks", table=OPEN
        )
        self.table_gauges = [self.halted]
        """Gauges with the label ``table`` that end with their table."""
        of_engine = make if has_engine else MetricMaker(CollectorRegistry())
        self.engine_up = of_engine.gauge(f"{start}_engine_up", "1 while the worker's engine (Spark session) is open")
        self.engine_failures = of_engine.counter(
            f"{start}_engine_failures_total",
            "Times that the worker's engine (Spark session) failed; not_opened: the next task tries again; died: its "
            "JVM has ended, and the process is replaced",
            reason=ENGINE_FAILURES,
        )

    def forget_tables(self, kept: Collection[str]) -> None:
        """Let the series of all other tables end: nobody writes them any more, and alerts would last for ever."""
        for metric in (*self.table_gauges, *self.dependencies.of_tables):
            for sample in [sample for family in metric.collect() for sample in family.samples]:
                if sample.labels["table"] and sample.labels["table"] not in kept:
                    metric.remove(*sample.labels.values())


class SparkWorkerMetrics(WorkerMetrics):
    """What every worker with a Spark session counts besides."""

    def __init__(self, component: Component, *, package: str, tasks: Sequence[str]) -> None:
        super().__init__(component, package=package, tasks=tasks, has_engine=True)
        self.interrupted = self.make.counter(
            f"icedb_{component}_interrupted_jobs_total",
            "Spark jobs that were interrupted; time_limit: ran too long; stopped: the run had lost its lock or fence; "
            "no_executors: a cluster gave none",
            reason=INTERRUPT_REASONS,
        )

    def count_interrupted(self, reason: str) -> None:
        """Count one job."""
        self.interrupted.labels(reason).inc()
