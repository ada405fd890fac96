"""A lease is enough for a publication only if it holds since the state that the publication shows."""

import asyncio
from types import SimpleNamespace

from icedb_gateway.published import PublishedTables
from icedb_log.holds.leases import read_leases
from icedb_log.warehouse import Warehouse
from icedb_service.readers import BlockingWork
from icedb_sim.tables.small_table import SmallTable
from waiting import LIMIT_MS

TTL_MS = 60_000


def test_a_lease_since_a_later_state_does_not_do_for_an_earlier_publication():
    table = SmallTable()
    table.append(1)
    earlier_ms = table.clock.now_ms()
    table.append(2)
    later_ms = table.clock.now_ms()
    work = BlockingWork(max_jobs=2, wait_ms=LIMIT_MS)
    settings = SimpleNamespace(gateway_staleness_ms=0, read_max_tables=4)
    published = PublishedTables(
        SimpleNamespace(
            warehouse=Warehouse(table.store, "wh"),
            reads=SimpleNamespace(work=work),
            clock=table.clock,
            metrics=None,
            settings=settings,
        ),
        lambda _table: None,
    )

    async def hold():
        until_ms = later_ms + TTL_MS // 2
        for at_ms in (later_ms, later_ms, earlier_ms, earlier_ms, later_ms):
            found = SimpleNamespace(publication=SimpleNamespace(as_of_ms=at_ms))
            await published.hold(table.name, found, until_ms=until_ms, ttl_ms=TTL_MS)

    try:
        asyncio.run(hold())
    finally:
        work.close()
    assert sorted(lease.at_ms for lease in read_leases(table)) == [earlier_ms, later_ms]
