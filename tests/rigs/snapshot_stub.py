"""Calls of the snapshot service over gRPC, on a store in memory; the store's clock is moved by hand."""

from contextlib import contextmanager

import grpc
import pytest
from icedb_log.clock import SystemClock
from icedb_proto import snapshot_pb2 as pb
from icedb_sim.tables.small_table import SmallTable
from waiting import LIMIT_S

POLL_MS = 20
DAY_MS = 24 * 60 * 60 * 1000
LEASE_MS = 600_000


class MovableClock(SystemClock):
    """This host's clock, which a test can put forward."""

    ahead_ms = 0

    def monotonic_ms(self):
        return super().monotonic_ms() + self.ahead_ms


@contextmanager
def refused(code, *words):
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() == code, caught.value.details()
    for word in words:
        assert word in caught.value.details()


def other(table, name):
    """Return another table of the same warehouse."""
    return SmallTable(store=table.store.inner, name=name, start_ms=table.clock.now_ms())


def acquire(stub, ttl_ms=LEASE_MS, **fields):
    return stub.AcquireLease(pb.AcquireLeaseRequest(table="events", ttl_ms=ttl_ms, **fields), timeout=LIMIT_S)
