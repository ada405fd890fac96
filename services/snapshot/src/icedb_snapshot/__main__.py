"""Runs the snapshot service: ``python -m icedb_snapshot``. Wiring only."""

import gc

from icedb_log.clock import SystemClock
from icedb_service.logs import get_logger
from icedb_service.main import run_main, stop_on_signals
from icedb_service.tracing import flush_traces

from icedb_snapshot.server import SnapshotService
from icedb_snapshot.settings import SnapshotSettings


def serve(settings: SnapshotSettings) -> int:
    """Serve until SIGTERM or SIGINT. A store that does not answer makes it not ready, and nothing else."""
    stopping = stop_on_signals()
    service = SnapshotService(settings.store_settings.open(), settings=settings, clock=SystemClock()).start()
    gc.freeze()  # modules stay: a search for cycles that looks through them holds an answer up for 60 ms
    stopping.wait()
    get_logger().info("snapshot_stopping")
    service.stop()
    flush_traces()
    get_logger().info("snapshot_stopped")
    return 0


if __name__ == "__main__":
    run_main(SnapshotSettings, "snapshot", serve)
