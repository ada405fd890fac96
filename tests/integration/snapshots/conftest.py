"""A snapshot service in this process, over a table in memory."""

import grpc
import pytest
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2_grpc
from icedb_sim.tables.small_table import SmallTable
from icedb_snapshot.__main__ import start_service
from icedb_snapshot.settings import SnapshotSettings
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
        settings = SnapshotSettings(
            store="file:///unused",
            snapshot_address="127.0.0.1:0",
            snapshot_lag_interval_ms=600_000,
            snapshot_watch_interval_ms=POLL_MS,
            snapshot_max_staleness_ms=0,
            **fields,
        )
        service = start_service(Warehouse(table.store, "wh"), settings=settings, clock=clock)
        channel = grpc.insecure_channel(f"127.0.0.1:{service.server.port}")
        running.append((service, channel))
        return service, snapshot_pb2_grpc.SnapshotServiceStub(channel)

    yield serve
    for service, channel in running:
        channel.close()
        service.stop()


@pytest.fixture
def stub(serve):
    return serve()[1]
