"""Snapshot services in this process, for tests of whoever asks them."""

from contextlib import contextmanager

from icedb_log.clock import SystemClock
from icedb_snapshot.__main__ import start_service
from icedb_snapshot.settings import SnapshotSettings


@contextmanager
def serving(warehouse):
    """Yield a function that starts a service over a warehouse, with further settings, and returns its port."""
    running = []

    def serve(**fields):
        settings = SnapshotSettings(
            store="file:///unused",
            snapshot_address="127.0.0.1:0",
            metrics_port=0,
            snapshot_watch_interval_ms=50,
            **fields,
        )
        running.append(start_service(warehouse, settings=settings, clock=SystemClock()))
        return running[-1].server.port

    yield serve
    for service in running:
        service.stop()
