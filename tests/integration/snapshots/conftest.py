"""A snapshot service in this process, over a table in memory."""

import pytest
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot
from icedb_sim.tables.small_table import SmallTable
from snapshot_stub import POLL_MS, MovableClock


@pytest.fixture
def table():
    return SmallTable(name="events")


@pytest.fixture
def clock():
    return MovableClock()


@pytest.fixture
def serve(table, clock):
    running = []

    def serve(**fields):
        rig = start_snapshot(
            Warehouse(table.store, "wh"),
            clock=clock,
            snapshot_watch_interval_ms=POLL_MS,
            snapshot_max_staleness_ms=0,
            **fields,
        )
        running.append(rig)
        return rig

    yield serve
    for rig in running:
        rig.stop()


@pytest.fixture
def stub(serve):
    return serve().stub
