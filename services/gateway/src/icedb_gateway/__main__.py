"""Runs the S3 gateway: ``python -m icedb_gateway``. Wiring only."""

from icedb_log.clock import SystemClock
from icedb_service.http_server import run_until_stopped, shown_as_waiting
from icedb_service.logs import get_logger
from icedb_service.main import ask_store, run_main, stop_on_signals, wait_for_clock, wait_until_available

from icedb_gateway.server import Gateway
from icedb_gateway.settings import GatewaySettings


def serve(settings: GatewaySettings) -> int:
    """Serve until SIGTERM or SIGINT. Needs the store alone, and of that only to read."""
    clock = SystemClock()
    warehouse = settings.store_settings.open()
    stopping = stop_on_signals()
    with shown_as_waiting(settings, clock=clock):
        wait_until_available("store", lambda: ask_store(warehouse), clock=clock)
        wait_for_clock(settings, clock=clock)
    gateway = Gateway(warehouse, settings=settings, clock=clock)
    gateway.metrics.dependencies.watch_store()
    gateway.start()
    scheme = "http" if settings.tls_cert_file is None else "https"
    get_logger().info(
        "gateway_served",
        s3=f"{scheme}://{settings.gateway_host}:{gateway.port}",
        iceberg=f"{scheme}://{settings.gateway_host}:{gateway.iceberg_port}",
        bucket=settings.gateway_bucket,
        store=settings.store,
        is_open=not gateway.is_enforced,
    )
    return run_until_stopped(gateway, stopping, name="gateway", mitigation="they only read")


if __name__ == "__main__":
    run_main(GatewaySettings, "gateway", serve)
