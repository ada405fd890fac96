"""A front end that the tests of a file share, empty again for each."""

from contextlib import contextmanager

from http_contract import checked
from icedb_sim.rigs.frontend_rig import start_rig
from waiting import wait_until


@contextmanager
def shared_frontend(folder):
    """Run a front end that takes small batches; its store lies below the folder. Its answers are held to the contract."""
    rig = start_rig(folder / "store", frontend_max_batch_mb=1, frontend_memory_mb=32)
    with checked():
        yield rig
    rig.frontend.stop()


@contextmanager
def emptied(rig):
    """Lend a front end to one test: nothing is staged, nothing under way; whoever waits at its gate is let go after."""
    wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)  # what the test before left under way
    rig.clear()
    yield rig
    rig.store.gate.set()
