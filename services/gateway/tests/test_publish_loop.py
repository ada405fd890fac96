"""The loop that publishes tables: what goes wrong at one of them ends no publication of another."""

import asyncio
from types import SimpleNamespace

import pytest
from icedb_gateway.published import PublishLoop
from icedb_log.errors import NotFound, Unavailable
from icedb_sim.fakes.fake_clock import FakeClock

NAMES = ("bad", "events", "zebra")


@pytest.mark.parametrize("error", [KeyError("nobody foresaw this"), Unavailable("the store"), NotFound("dropped")])
def test_a_table_that_fails_ends_no_publication_of_another(error):
    published = []

    async def names():
        return NAMES

    async def publish(name):
        await asyncio.sleep(0)
        if name == "bad":
            raise error
        published.append(name)

    settings = SimpleNamespace(gateway_iceberg_publish_interval_ms=1000)
    parts = SimpleNamespace(settings=settings, clock=FakeClock(), names=SimpleNamespace(read=names))
    loop = PublishLoop(parts, SimpleNamespace(read=publish))
    loop._chosen.update(NAMES)
    for name in NAMES:
        loop._configs.note(name)
    asyncio.run(loop.look_once())
    assert sorted(published) == ["events", "zebra"]
    assert loop._backoff.is_due("bad") == isinstance(error, NotFound)
    assert loop._backoff.is_due("events")
