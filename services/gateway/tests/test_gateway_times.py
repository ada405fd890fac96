"""Which times a gateway takes for past: by the store's clock, whatever its host says."""

import asyncio
from types import SimpleNamespace

import pytest
from icedb_gateway.errors import S3Error
from icedb_gateway.listing import TableRef
from icedb_gateway.requests import GatewayParts
from icedb_gateway.settings import GatewaySettings
from icedb_gateway.views import TableViews
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.fake_clock import FakeClock

STORE_MS = 1_700_000_000_000


class Work:
    async def run_compute(self, work):
        return work()


def ask(clock, *, as_of_ms):
    """What is answered to a read of the past of a state that was read when the clock began."""
    state = SimpleNamespace(view=SimpleNamespace(store_now_ms=STORE_MS), started_ms=0, at=lambda at_ms: at_ms)
    settings, reads = GatewaySettings(store="file:///unused"), SimpleNamespace(work=Work())
    views = TableViews(GatewayParts(None, settings, None, clock, None, reads, None))
    return asyncio.run(views._at(TableRef("events", as_of_ms=as_of_ms), state))


@pytest.mark.parametrize("off_ms", [-600_000, 0, 600_000])
def test_the_hosts_clock_has_no_say(off_ms):
    clock = FakeClock(STORE_MS + off_ms)
    clock.advance(5_000)
    assert ask(clock, as_of_ms=STORE_MS + 5_000) == STORE_MS + 5_000
    with pytest.raises(S3Error, match="not come yet"):
        ask(clock, as_of_ms=STORE_MS + 5_000 + MAX_STORE_GAP_MS + 1)
