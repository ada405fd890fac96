"""Runs the snapshot service: ``python -m icedb_snapshot``. Wiring only."""

from functools import partial

from icedb_log.clock import SystemClock
from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main

from icedb_snapshot.metrics import SnapshotMetrics
from icedb_snapshot.server import SnapshotService
from icedb_snapshot.settings import SnapshotSettings


def serve(settings: SnapshotSettings) -> int:
    """Serve until SIGTERM or SIGINT. A store that does not answer makes it not ready, and nothing else."""
    clock, metrics = SystemClock(), SnapshotMetrics()
    return run_endpoints(
        partial(SnapshotService, settings=settings, clock=clock, metrics=metrics),
        settings,
        metrics=metrics,
        clock=clock,
        mitigation="they only read, or renew leases that end by themselves",
        waits=False,
    )


if __name__ == "__main__":
    run_main(SnapshotSettings, "snapshot", serve)
