"""Reads of tables for the event loop: begun ahead of need, and by whom."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from icedb_log.errors import NotFound, Unavailable
from icedb_service.readers import BlockingWork, TableReads
from icedb_sim.fakes.fake_clock import FakeClock
from waiting import LIMIT_MS

ACCEPTED_MS = 1000


class Table:
    """A table that is read when the test lets it."""

    def __init__(self, clock):
        self.clock = clock
        self.state = SimpleNamespace(started_ms=clock.monotonic_ms())
        self.read_count = 0
        self.error = None
        self.dropped = []
        self.is_open = asyncio.Event()

    def ask(self, max_staleness_ms):
        return SimpleNamespace(arrived_ms=self.clock.monotonic_ms(), max_staleness_ms=max_staleness_ms)

    def answer(self, question):
        age_ms = question.arrived_ms - self.state.started_ms
        return self.state if age_ms <= question.max_staleness_ms > 0 else None

    async def read(self, *, max_staleness_ms):
        self.read_count += 1
        started_ms = self.clock.monotonic_ms()
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        self.state = SimpleNamespace(started_ms=started_ms)
        return self.state


class Work(BlockingWork):
    """Runs coroutines where the real one runs threads."""

    async def run_blocking(self, _table, function):
        return await function()


@asynccontextmanager
async def opened():
    clock = FakeClock()
    table = Table(clock)
    tables = SimpleNamespace(table=lambda _: table, drop=table.dropped.append)
    work = Work(max_jobs=1, wait_ms=LIMIT_MS)
    yield TableReads(tables, work=work), table, clock
    table.is_open.set()
    await settle()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_next_read_begins_before_anybody_needs_it_and_nobody_waits():
    async def go():
        async with opened() as (reads, table, clock):
            first = table.state
            clock.advance(ACCEPTED_MS // 2)
            assert await reads.read("events", max_staleness_ms=ACCEPTED_MS) is first
            await settle()
            assert table.read_count == 0, "it is young"
            clock.advance(1)
            for _ in range(3):
                assert await reads.read("events", max_staleness_ms=ACCEPTED_MS) is first
                await settle()
            assert table.read_count == 1, "one, however many ask"
            table.is_open.set()
            await settle()
            clock.advance(ACCEPTED_MS // 2)
            assert (await reads.read("events", max_staleness_ms=ACCEPTED_MS)).started_ms == first.started_ms + 501
            assert table.read_count == 1

    asyncio.run(go())


def test_a_read_ahead_that_fails_is_the_trouble_of_who_needs_it():
    async def go():
        async with opened() as (reads, table, clock):
            table.error = Unavailable("the store is away")
            table.is_open.set()
            clock.advance(ACCEPTED_MS)
            assert await reads.read("events", max_staleness_ms=ACCEPTED_MS) is table.state
            await settle()
            assert table.read_count == 1
            clock.advance(1)
            with pytest.raises(Unavailable, match="the store is away"):
                await reads.read("events", max_staleness_ms=ACCEPTED_MS)

    asyncio.run(go())


@pytest.mark.parametrize(("error", "dropped"), [(NotFound("no such table"), ["events"]), (Unavailable("away"), [])])
def test_what_is_known_of_a_table_is_forgotten_when_the_table_is_gone_and_only_then(error, dropped):
    async def go():
        async with opened() as (reads, table, _clock):
            table.error = error
            table.is_open.set()
            with pytest.raises(type(error)):
                await reads.read("events", max_staleness_ms=0)
            assert table.dropped == dropped

    asyncio.run(go())
