"""Runs the front end: ``python -m icedb_ingest.frontend``. Wiring only."""

from functools import partial

from icedb_log.clock import SystemClock
from icedb_log.names import INGEST_FLUSH
from icedb_service.celery_app import make_app
from icedb_service.http_server import run_until_stopped, shown_as_waiting
from icedb_service.logs import get_logger
from icedb_service.main import run_main, stop_on_signals, wait_for_servers
from icedb_service.redis_clients import open_redis
from icedb_service.wakeup import Wakeups

from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.server import Frontend
from icedb_ingest.frontend.settings import FrontendSettings


def serve(settings: FrontendSettings) -> int:
    """Serve until SIGTERM or SIGINT; Redis need not be there (I4)."""
    clock = SystemClock()
    metrics = FrontendMetrics()
    metrics.dependencies.watch_store()  # before the first request: those of the start count, too
    with shown_as_waiting(settings, clock=clock):
        wait_for_servers(settings, clock=clock, needs_redis=False)
    stopping = stop_on_signals()
    count = metrics.dependencies.counter_of("queue")
    redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms, on_failure=count)
    wakeups = Wakeups(make_app(settings), redis, settings=settings, counter=metrics.wakes)
    frontend = Frontend(
        settings.store_settings.open(),
        settings=settings,
        clock=clock,
        wake=partial(wakeups.wake, INGEST_FLUSH),
        metrics=metrics,
    )
    frontend.start()
    host = settings.frontend_host
    get_logger().info(
        "frontend_served",
        http=f"http://{host}:{frontend.http_port}",
        grpc=f"{host}:{frontend.grpc_port}",
        store=settings.store,
    )
    return run_until_stopped(frontend, stopping, name="frontend", mitigation="what was acknowledged is durable")


if __name__ == "__main__":
    run_main(FrontendSettings, "frontend", serve)
