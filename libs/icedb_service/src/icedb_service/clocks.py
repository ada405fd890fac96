"""How a service's clock stands to the store's: gauges, warnings, and a look before it begins to work.

Nothing is decided by this once a service works: what a wrong clock can do is bounded by the protocol
(docs/internals/clocks.md).
"""

import threading
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.store_clock import ClockWatch, TellsTime
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse
from prometheus_client import CollectorRegistry, Counter, Gauge

from icedb_service.logs import get_logger
from icedb_service.settings import ServiceSettings

DIRECTIONS: Final = ("ahead", "back")


class ClockMetrics:
    """What one process shows of its clock.

    Args:
        registry: Where the metrics live.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.skew = Gauge(
            "icedb_clock_skew_seconds",
            "How far this host's wall clock is ahead of the store's, by the store's last answers; negative: behind",
            registry=registry,
        )
        self.warn = Gauge(
            "icedb_clock_skew_warn_seconds",
            "From which skew on, in either direction, the log and an alert say so (ICEDB_CLOCK_SKEW_WARN_MS)",
            registry=registry,
        )
        self.jumps = Counter(
            "icedb_clock_jumps_total",
            "Times that this host's wall clock was set, against the monotonic one, by half a second or more",
            ("direction",),
            registry=registry,
        )
        for direction in DIRECTIONS:
            self.jumps.labels(direction)


class ServiceClock:
    """Shows and tells how this process's clock stands. Thread-safe; may listen to several stores of one warehouse.

    Args:
        metrics: Where it is shown.
        clock: This host's.
        warn_ms: From which skew on it is said.
    """

    def __init__(self, metrics: ClockMetrics, *, clock: Clock, warn_ms: int) -> None:
        metrics.warn.set(warn_ms / SECOND_MS)
        self._metrics = metrics
        self._warn_ms = warn_ms
        self._lock = threading.Lock()
        self._is_off = False
        self._watch = ClockWatch(clock, on_skew=self._show_skew, on_jump=self._count_jump)

    def listen_to(self, store: ObjectStore) -> None:
        """Listen to the answers of a store, if it tells what time they show."""
        if isinstance(store, TellsTime):
            store.time_listeners.append(self._watch.hear)

    def _show_skew(self, skew_ms: int) -> None:
        self._metrics.skew.set(skew_ms / SECOND_MS)
        with self._lock:
            was_off, self._is_off = self._is_off, abs(skew_ms) > self._warn_ms
        if self._is_off and not was_off:
            get_logger().warning(
                "clock_skewed",
                skew_ms=skew_ms,
                limit_ms=self._warn_ms,
                mitigation="nothing is lost or deleted early; set the clock that is wrong (NTP)",
            )
        elif was_off and not self._is_off:
            get_logger().info("clock_agrees", skew_ms=skew_ms)

    def _count_jump(self, jumped_ms: int) -> None:
        self._metrics.jumps.labels("ahead" if jumped_ms > 0 else "back").inc()
        get_logger().warning("clock_jumped", jumped_ms=jumped_ms, mitigation="no age and no order depends on it")


def watch_clock(store: ObjectStore, metrics: ClockMetrics, *, clock: Clock, settings: ServiceSettings) -> None:
    """Show from now on how this host's clock stands to a store's."""
    ServiceClock(metrics, clock=clock, warn_ms=settings.clock_skew_warn_ms).listen_to(store)


def require_near_clock(warehouse: Warehouse, *, clock: Clock, limit_ms: int) -> None:
    """Return if this host's clock is near the store's. Costs one listing.

    Raises:
        Unavailable: It is further off than ``limit_ms``, or the store did not answer.
    """
    root = f"{warehouse.root}/" if warehouse.root else ""
    before_ms = clock.now_ms()
    store_ms = warehouse.store.list_page(root, limit=1).store_now_ms
    after_ms = clock.now_ms()
    # The answer was made in between, and S3 tells whole seconds, cut off: by so much is it certainly ahead, or behind.
    ahead_ms, behind_ms = before_ms - store_ms - SECOND_MS, store_ms - after_ms
    if max(ahead_ms, behind_ms) > limit_ms:
        raise Unavailable(
            f"this host's clock is {max(ahead_ms, behind_ms)} ms {'ahead of' if ahead_ms > 0 else 'behind'} the "
            f"store's, more than {limit_ms} ms (ICEDB_CLOCK_SKEW_LIMIT_MS): set the one that is wrong (NTP)"
        )
