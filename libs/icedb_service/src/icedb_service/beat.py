"""Beat: sends each sweep when it is due. Run with ``python -m icedb_service.beat``.

Keeps nothing on disk: a sweep that is a little early after a restart does no harm. Several beats may run; their
sweeps collapse (:mod:`icedb_service.wakeup`). Redis that does not answer costs one log line for each sweep.
"""

import signal
from types import FrameType
from typing import Any, NoReturn

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, Service
from icedb_log.clock import SystemClock

from icedb_service.celery_app import make_app
from icedb_service.logs import get_logger
from icedb_service.main import run_main
from icedb_service.preflight import wait_until_available
from icedb_service.redis_clients import open_redis, ping_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups

MAX_LOOP_INTERVAL_S = 1.0


class SweepScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends sweeps as wake-ups, so that one that still waits is not sent again."""

    producer = None
    wakeups: Wakeups

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Wake the entry's task; a failure is logged and made good at the next turn."""
        del producer
        self.wakeups.try_wake(entry.task)


def make_beat(app: Celery, wakeups: Wakeups) -> Service:
    """Return the service; ``start`` runs it until SystemExit."""
    kind = type("BoundSweepScheduler", (SweepScheduler,), {"wakeups": wakeups})
    return Service(app, scheduler_cls=kind, max_interval=MAX_LOOP_INTERVAL_S)


def serve(settings: ServiceSettings) -> int:
    """Run until SIGTERM or SIGINT."""
    redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
    wait_until_available("redis", lambda: ping_redis(redis, settings.redis_url), clock=SystemClock())
    app = make_app(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    get_logger().info("beat_started", sweeps=sorted(app.conf.beat_schedule))
    make_beat(app, Wakeups(app, redis, settings=settings)).start()
    get_logger().info("beat_stopped")
    return 0


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    run_main(ServiceSettings, "beat", serve)
