"""Runs the front end: ``python -m icedb_ingest.frontend``. Wiring only."""

from functools import partial

from icedb_log.names import INGEST_FLUSH
from icedb_service.celery_app import make_app
from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main
from icedb_service.redis_clients import open_redis
from icedb_service.wakeup import Wakeups

from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.server import Frontend
from icedb_ingest.frontend.settings import FrontendSettings


def serve(settings: FrontendSettings) -> int:
    """Serve until SIGTERM or SIGINT; Redis need not be there (I4)."""
    metrics = FrontendMetrics()
    count = metrics.dependencies.counter_of("queue")
    redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms, on_failure=count)
    wakeups = Wakeups(make_app(settings), redis, settings=settings, counter=metrics.wakes)
    return run_endpoints(Frontend, settings, metrics=metrics, wake=partial(wakeups.wake, INGEST_FLUSH))


if __name__ == "__main__":
    run_main(FrontendSettings, "frontend", serve)
