"""Runs the console: ``python -m icedb_console``. Wiring only."""

from functools import partial

from icedb_log.clock import SystemClock
from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main

from icedb_console.metrics import ConsoleMetrics
from icedb_console.server import Console
from icedb_console.settings import ConsoleSettings


def serve(settings: ConsoleSettings) -> int:
    """Serve until SIGTERM or SIGINT. Needs the store alone; Redis only to wake workers when somebody asks for that."""
    clock, metrics = SystemClock(), ConsoleMetrics()
    return run_endpoints(
        partial(Console, settings=settings, clock=clock, metrics=metrics),
        settings,
        metrics=metrics,
        clock=clock,
        mitigation="they only read, or have been asked twice",
    )


if __name__ == "__main__":
    run_main(ConsoleSettings, "console", serve)
