"""Coroutines share reads of a table (R4): few, one thread for each table, and nobody is hurt by another."""

import asyncio
import threading

import pytest
from icedb_log.clock import SystemClock
from icedb_log.errors import NotFound, Overloaded, Unavailable
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_service.readers import BlockingWork, TableReads
from icedb_sim.fakes.memory_store import MemoryObjectStore
from waiting import LIMIT_S


class GatedStore(MemoryObjectStore):
    """Listings of logs wait for a gate after they were taken."""

    def __init__(self, now_ms):
        super().__init__(now_ms)
        self.gate = threading.Event()
        self.gate.set()
        self.listings = 0

    def list_page(self, prefix, *, token=None, limit=1000):
        page = super().list_page(prefix, token=token, limit=limit)
        if prefix.endswith("/_log/"):
            self.listings += 1
            assert self.gate.wait(LIMIT_S)
        return page


class Rig:
    def __init__(self, **limits):
        self.clock = SystemClock()
        self.store = GatedStore(self.clock.now_ms)
        self.warehouse = Warehouse(self.store)
        bounds = {"max_jobs": 16, "wait_ms": 30_000, **limits}
        self.work = BlockingWork(**bounds)
        tables = TableCache(self.warehouse, clock=self.clock, max_tables=9, wait_ms=30_000, on_refresh=lambda _ms: None)
        self.reads = TableReads(tables, work=self.work)
        for name in "ab":
            create_table(TableStore(self.store, self.warehouse.table(name).paths), TableConfig.create(name=name))

    def commit(self, name="a"):
        paths, now_ms = self.warehouse.table(name).paths, self.clock.now_ms()
        marker = FileMarker(paths.data_key(partition="", file_id=self.clock.new_id()), 1, now_ms)
        key = paths.log_key(time_ms=now_ms, commit_id=self.clock.new_id(), is_merged=False)
        self.store.put_if_absent(key, encode_log_file(LogFile(time_ms=now_ms, markers=(marker,))))

    def read(self, name="a", max_staleness_ms=0):
        return asyncio.ensure_future(self.reads.read(name, max_staleness_ms=max_staleness_ms))

    async def listed(self, count):
        while self.store.listings < count:  # noqa: ASYNC110 - counted in another thread
            await asyncio.sleep(0.001)


def run(test, **limits):
    rig = Rig(**limits)
    try:
        asyncio.run(asyncio.wait_for(test(rig), LIMIT_S))
    finally:
        rig.store.gate.set()
        rig.work.close()


def count(state):
    return len(state.snapshot.live)


def test_who_comes_during_a_read_gets_one_that_began_later_unless_its_age_will_do():
    async def test(rig):
        rig.store.gate.clear()
        first = rig.read()
        await rig.listed(1)
        rig.commit()
        late = [rig.read() for _ in range(30)]
        lenient = [rig.read(max_staleness_ms=60_000) for _ in range(30)]
        await asyncio.sleep(0)
        assert rig.work.job_count == 1
        rig.store.gate.set()
        assert count(await first) == 0
        assert {count(await each) for each in lenient} == {0}
        assert {count(await each) for each in late} == {1}
        assert rig.store.listings == 2
        assert count(await rig.read(max_staleness_ms=60_000)) == 1
        assert rig.store.listings == 2

    run(test)


def test_a_caller_that_is_cancelled_takes_nothing_from_the_others():
    async def test(rig):
        rig.store.gate.clear()
        first, second, third = rig.read(), rig.read(max_staleness_ms=60_000), rig.read()
        await rig.listed(1)
        first.cancel()
        third.cancel()
        rig.store.gate.set()
        assert count(await second) == 0
        assert first.cancelled()

    run(test)


def test_beyond_its_threads_a_read_is_refused_at_once_with_the_time_to_wait():
    async def test(rig):
        rig.store.gate.clear()
        first = rig.read("a")
        await rig.listed(1)
        with pytest.raises(Overloaded, match="wait for the object store already") as caught:
            await rig.read("b")
        assert caught.value.retry_after_ms > 0
        rig.store.gate.set()
        await first
        assert count(await rig.read("b")) == 0

    run(test, max_jobs=1)


def test_a_table_has_its_share_of_threads_and_not_more():
    async def test(rig):
        gate = threading.Event()
        held = [asyncio.ensure_future(rig.work.run_blocking("a", gate.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="table a: 3 calls"):
            await rig.read("a")
        assert count(await rig.read("b")) == 0
        gate.set()
        await asyncio.gather(*held)
        assert count(await rig.read("a")) == 0

    run(test, max_jobs=12)


def test_a_read_that_takes_too_long_is_left_alone_and_the_next_caller_has_it():
    async def test(rig):
        rig.work.wait_ms = 20
        rig.store.gate.clear()
        with pytest.raises(Unavailable, match=r"within 20 ms \(ICEDB_READ_WAIT_MS\)"):
            await rig.read()
        rig.work.wait_ms = 30_000
        again = rig.read(max_staleness_ms=60_000)
        rig.store.gate.set()
        assert count(await again) == 0
        assert rig.store.listings == 1

    run(test)


def test_an_unknown_table_is_not_remembered():
    async def test(rig):
        for _ in range(2):
            with pytest.raises(NotFound):
                await rig.read("nope")
        assert rig.reads._reads.find("nope") is None

    run(test)
