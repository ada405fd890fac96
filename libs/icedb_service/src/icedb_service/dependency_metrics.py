"""What is counted of the servers that a service needs: each request to the store or to Redis that failed.

Retries and quorums hide failures, from callers and from outcomes of runs: one Redis master of three that is down, or a
store that answers every tenth request with an error, costs nothing yet. Here they are seen.
"""

from collections.abc import Callable
from typing import Final, Literal

from icedb_log.store.request_failures import OPERATIONS, REASONS, Operation, Reason, listen_to_failures
from prometheus_client import CollectorRegistry, Counter

RedisUse = Literal["locks", "queue"]
REDIS_USES: Final[tuple[RedisUse, ...]] = ("locks", "queue")


class DependencyMetrics:
    """Counters of one process.

    Args:
        registry: Where they live.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._store = Counter(
            "icedb_store_request_failures_total",
            "Requests to the store that failed, also those that were sent again and went well; unreachable: no "
            "connection, broken: it ended before the whole answer, throttled: 429 or 503",
            ("operation", "reason"),
            registry=registry,
        )
        for operation in OPERATIONS:
            for reason in REASONS:
                self._store.labels(operation, reason)
        self._redis = Counter(
            "icedb_redis_request_failures_total",
            "Requests to Redis that were not answered; locks: each master of the locks counts by itself, queue: "
            "wake-ups of workers",
            ("use",),
            registry=registry,
        )
        for use in REDIS_USES:
            self._redis.labels(use)

    def watch_store(self) -> None:
        """Count the failed requests of this process from now on. Called once, by whoever runs the process."""
        listen_to_failures(self._count_store)

    def counter_of(self, use: RedisUse) -> Callable[[], None]:
        """Return what counts one failed request to Redis; for :func:`icedb_service.redis_clients.open_redis`."""
        return self._redis.labels(use).inc

    def _count_store(self, operation: Operation, reason: Reason) -> None:
        self._store.labels(operation, reason).inc()
