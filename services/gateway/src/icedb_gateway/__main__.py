"""Runs the S3 gateway: ``python -m icedb_gateway``. Wiring only."""

from functools import partial

from icedb_log.clock import SystemClock
from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main

from icedb_gateway.metrics import GatewayMetrics
from icedb_gateway.server import Gateway
from icedb_gateway.settings import GatewaySettings


def serve(settings: GatewaySettings) -> int:
    """Serve until SIGTERM or SIGINT. Needs the store alone, and of that only to read."""
    clock, metrics = SystemClock(), GatewayMetrics()
    return run_endpoints(
        partial(Gateway, settings=settings, clock=clock, metrics=metrics),
        settings,
        metrics=metrics,
        clock=clock,
        mitigation="they only read",
    )


if __name__ == "__main__":
    run_main(GatewaySettings, "gateway", serve)
