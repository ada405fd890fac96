"""Runs the console: ``python -m icedb_console``. Wiring only."""

from icedb_log.clock import SystemClock
from icedb_service.http_server import run_until_stopped, shown_as_waiting
from icedb_service.logs import get_logger
from icedb_service.main import ask_store, run_main, stop_on_signals, wait_for_clock, wait_until_available

from icedb_console.server import Console
from icedb_console.settings import ConsoleSettings


def serve(settings: ConsoleSettings) -> int:
    """Serve until SIGTERM or SIGINT. Needs the store alone; Redis only to wake workers when somebody asks for that."""
    clock = SystemClock()
    warehouse = settings.store_settings.open()
    stopping = stop_on_signals()
    with shown_as_waiting(settings, clock=clock):
        wait_until_available("store", lambda: ask_store(warehouse), clock=clock)
        wait_for_clock(settings, clock=clock)
    console = Console(warehouse, settings=settings, clock=clock)
    console.metrics.dependencies.watch_store()
    console.start()
    scheme = "http" if settings.tls_cert_file is None else "https"
    get_logger().info(
        "console_served",
        address=f"{scheme}://{settings.console_host}:{console.port}",
        store=settings.store,
        is_open=not console.is_enforced,
    )
    return run_until_stopped(console, stopping, name="console", mitigation="they only read, or have been asked twice")


if __name__ == "__main__":
    run_main(ConsoleSettings, "console", serve)
