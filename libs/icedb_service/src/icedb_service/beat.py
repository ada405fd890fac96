"""Beat: sends each sweep when it is due. Run with ``python -m icedb_service.beat``.

Serves ``/metrics`` where ``ICEDB_METRICS_PORT`` says so. Keeps nothing on disk: a sweep that is a little early after a
restart does no harm. Several beats may run; their sweeps collapse (:mod:`icedb_service.wakeup`). Redis that does not
answer costs one log line for each sweep.
"""

import signal
from functools import cached_property
from types import FrameType
from typing import Any, NoReturn

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, Service
from icedb_log.clock import Clock, SystemClock

from icedb_service.celery_app import make_app
from icedb_service.http_server import HealthChecks, check_port_is_free, shown_as_waiting, start_metrics_server
from icedb_service.logs import get_logger
from icedb_service.main import run_main, wait_until_available
from icedb_service.metrics import WAKE_OUTCOMES, DependencyMetrics, MetricMaker, make_registry
from icedb_service.progress import LoopProgress
from icedb_service.redis_clients import open_redis, ping_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups

MAX_LOOP_INTERVAL_S = 1.0


class BeatMetrics:
    """What beat counts."""

    def __init__(self) -> None:
        self.registry = make_registry()
        self.wakes = MetricMaker(self.registry).counter(
            "icedb_beat_wakes_total",
            "Sweeps that were due; collapsed: the same one was on its way",
            outcome=WAKE_OUTCOMES,
        )
        self.dependencies = DependencyMetrics(self.registry)


class SweepScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends sweeps as wake-ups, so that one that still waits is not sent again."""

    producer = None
    wakeups: Wakeups
    clock: Clock
    loop: LoopProgress

    def tick(self, **_ignored: Any) -> float:
        """Wake what is due, and return for how many seconds nothing is.

        By the monotonic clock: Celery's own schedule goes by the wall clock, and one that is set back by an hour would
        stop every sweep for an hour. What has not run yet is due at once: one that keeps crashing sweeps, too.
        """
        self.loop.tell()
        for name, entry in self.schedule.items():
            now_ms = self.clock.monotonic_ms()
            if self._due_ms.get(name, now_ms) <= now_ms:
                self._due_ms[name] = now_ms + round(entry.schedule.run_every.total_seconds() * 1000)
                self.apply_entry(entry)
        left_ms = min(self._due_ms.values()) - self.clock.monotonic_ms()
        return min(max(left_ms, 0) / 1000, MAX_LOOP_INTERVAL_S)

    @cached_property
    def _due_ms(self) -> dict[str, int]:
        """When each entry is due, monotonic."""
        return {}

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Wake the entry's task; a failure is logged and made good at the next turn."""
        del producer
        self.wakeups.try_wake(entry.task)


def make_beat(app: Celery, wakeups: Wakeups, *, clock: Clock, loop: LoopProgress | None = None) -> Service:
    """Return the service; ``start`` runs it until SystemExit, and tells ``loop`` with each turn."""
    loop = loop or LoopProgress("beat", clock=clock)
    kind = type("BoundSweepScheduler", (SweepScheduler,), {"wakeups": wakeups, "clock": clock, "loop": loop})
    return Service(app, scheduler_cls=kind, max_interval=MAX_LOOP_INTERVAL_S)


def serve(settings: ServiceSettings) -> int:
    """Run until SIGTERM or SIGINT."""
    check_port_is_free(settings.metrics_host, settings.metrics_port)
    metrics = BeatMetrics()
    count = metrics.dependencies.counter_of("queue")
    redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms, on_failure=count)
    ready = {"redis": lambda: ping_redis(redis, settings.redis_url)}
    with shown_as_waiting(settings, clock=SystemClock()):
        wait_until_available("redis", ready["redis"], clock=SystemClock())
    loop = LoopProgress("beat", clock=SystemClock())
    start_metrics_server(
        metrics.registry,
        host=settings.metrics_host,
        port=settings.metrics_port,
        health=HealthChecks(alive={"loop": loop.check}, ready=ready),
        clock=SystemClock(),
    )
    app = make_app(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    get_logger().info("beat_started", sweeps=sorted(app.conf.beat_schedule))
    wakeups = Wakeups(app, redis, settings=settings, counter=metrics.wakes)
    make_beat(app, wakeups, clock=SystemClock(), loop=loop).start()
    get_logger().info("beat_stopped")
    return 0


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    run_main(ServiceSettings, "beat", serve)
