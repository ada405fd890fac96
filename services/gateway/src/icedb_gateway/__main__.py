"""Runs the S3 gateway: ``python -m icedb_gateway``. Wiring only."""

import os
import signal
import threading

from icedb_log.clock import SystemClock
from icedb_service.logs import get_logger
from icedb_service.main import EXIT_FAILURE, find_hanging_threads, run_main, wait_for_clock, wait_until_available

from icedb_gateway.server import Gateway
from icedb_gateway.settings import GatewaySettings

WATCH_S = 1.0


def serve(settings: GatewaySettings) -> int:
    """Serve until SIGTERM or SIGINT. Needs the store alone, and of that only to read."""
    clock = SystemClock()
    warehouse = settings.store_settings.open()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    root = f"{warehouse.root}/" if warehouse.root else ""
    wait_until_available("store", lambda: warehouse.store.list_page(root, limit=1), clock=clock)
    wait_for_clock(settings, clock=clock)
    gateway = Gateway(warehouse, settings=settings, clock=clock)
    gateway.metrics.dependencies.watch_store()
    gateway.start()
    scheme = "http" if settings.tls_cert_file is None else "https"
    get_logger().info(
        "gateway_served",
        s3=f"{scheme}://{settings.gateway_host}:{gateway.port}",
        bucket=settings.gateway_bucket,
        store=settings.store,
        is_open=not gateway.is_enforced,
    )
    while not stopping.wait(WATCH_S) and gateway.is_alive():
        pass
    get_logger().info("gateway_stopping")
    gateway.stop()
    code = 0 if stopping.is_set() else EXIT_FAILURE
    hanging = find_hanging_threads()
    if hanging:
        # The interpreter would wait for them, and they for a store that does not answer.
        get_logger().warning("shutdown_forced", threads=hanging, mitigation="they only read")
        os._exit(code)
    get_logger().info("gateway_stopped")
    return code


if __name__ == "__main__":
    run_main(GatewaySettings, "gateway", serve)
