"""Run the snapshot service: ``python -m icedb_snapshot``."""

import gc
import signal
import sys
import threading

from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, UnsupportedFormat
from icedb_service.logs import configure_logging, get_logger
from icedb_service.main import EXIT_FAILURE, EXIT_USAGE
from icedb_service.settings import load_settings
from icedb_service.tracing import configure_tracing, flush_traces

from icedb_snapshot.server import SnapshotService
from icedb_snapshot.settings import SnapshotSettings


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        settings = load_settings(SnapshotSettings)
        configure_logging(settings, component="snapshot")
        configure_tracing("snapshot")
        service = SnapshotService(settings.store_settings.open(), settings=settings, clock=SystemClock()).start()
    except IceDBError as error:
        sys.stderr.write(f"icedb-snapshot: {error}\n")
        return EXIT_USAGE if isinstance(error, InvalidRequest | UnsupportedFormat) else EXIT_FAILURE
    gc.freeze()  # modules stay: a search for cycles that looks through them holds an answer up for 60 ms
    stopped.wait()
    get_logger().info("snapshot_stopping")
    service.stop()
    flush_traces()
    get_logger().info("snapshot_stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
