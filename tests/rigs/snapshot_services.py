"""Snapshot services in this process, for tests of whoever asks them."""

from contextlib import contextmanager

from icedb_sim.rigs.snapshot_rig import start_snapshot


@contextmanager
def serving(warehouse):
    """Yield a function that starts a service over a warehouse, with further settings, and returns its port."""
    running = []

    def serve(**fields):
        running.append(start_snapshot(warehouse, snapshot_watch_interval_ms=50, **fields))
        return running[-1].port

    yield serve
    for rig in running:
        rig.stop()
