"""The names of the tables that are there: one look for all callers, of the age they were promised."""

import asyncio
import threading

import pytest
from icedb_log.errors import NotFound, Unavailable
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_service.readers import BlockingWork, TableNames
from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from waiting import LIMIT_S


class LookedAtStore(MemoryObjectStore):
    """Counts looks at folders and at configurations; a look can be held up, or fail."""

    def __init__(self, now_ms):
        super().__init__(now_ms)
        self.gate = threading.Event()
        self.gate.set()
        self.looks = 0
        self.configs = 0
        self.failure = None
        self.silent = ""

    def list_folders(self, prefix):
        self.looks += 1
        assert self.gate.wait(LIMIT_S)
        if self.failure is not None:
            raise self.failure
        return super().list_folders(prefix)

    def get(self, key):
        self.configs += 1
        if self.silent and key.startswith(f"{self.silent}/"):
            raise Unavailable(f"{key}: no answer")
        return super().get(key)


class Rig:
    def __init__(self, *, max_age_ms=1000, wait_ms=30_000):
        self.clock = ManualClock()
        self.store = LookedAtStore(self.clock.now_ms)
        self.warehouse = Warehouse(self.store)
        self.work = BlockingWork(max_jobs=2, wait_ms=wait_ms)
        self.names = TableNames(self.warehouse, work=self.work, clock=self.clock, max_age_ms=max_age_ms)

    def create(self, *names):
        for name in names:
            create_table(TableStore(self.store, self.warehouse.table(name).paths), TableConfig.create(name=name))
        self.store.configs = 0


def run(test, **rig):
    """Run a test that takes a rig."""

    async def whole():
        made = Rig(**rig)
        try:
            await test(made)
        finally:
            made.store.gate.set()
            made.work.close()

    asyncio.run(whole())


def test_many_callers_share_a_look_and_later_ones_its_names():
    async def test(rig):
        rig.create("b", "a")
        rig.store.gate.clear()
        callers = [asyncio.ensure_future(rig.names.read()) for _ in range(50)]
        await asyncio.sleep(0)
        callers[0].cancel()
        rig.store.gate.set()
        assert await asyncio.gather(*callers[1:]) == [("a", "b")] * 49
        rig.clock.advance(1000)
        assert await rig.names.read() == ("a", "b")
        assert rig.store.looks == 1
        rig.clock.advance(1)
        await rig.names.read()
        assert rig.store.looks == 2

    run(test)


def test_a_look_reads_no_configuration_that_was_read_in_the_last_ten_seconds():
    async def test(rig):
        names = tuple(f"t{number:02}" for number in range(30))  # more than are read one after the other
        rig.create(*names)
        assert await rig.names.read() == names
        assert rig.store.configs == 30
        rig.create("new")
        assert await rig.names.read() == ("new", *names)
        assert rig.store.configs == 1
        rig.store.delete([rig.warehouse.table("t07").paths.config_key])
        rig.clock.advance(10_000)
        assert await rig.names.read() == ("new", *(name for name in names if name != "t07"))

    run(test, max_age_ms=0)


def test_names_that_are_kept_are_not_given_when_the_age_is_nothing():
    async def test(rig):
        rig.create("a")
        await rig.names.read()
        rig.create("b")
        assert await rig.names.read() == ("a", "b")

    run(test, max_age_ms=0)


def test_a_store_that_hangs_is_said_to_be_slow_and_one_that_fails_fails_for_that_call():
    async def test(rig):
        rig.create("a")
        rig.store.gate.clear()
        with pytest.raises(Unavailable, match=r"within 1 ms \(ICEDB_READ_WAIT_MS\)"):
            await rig.names.read()
        rig.store.gate.set()
        rig.work.wait_ms = 30_000
        assert await rig.names.read() == ("a",)
        rig.clock.advance(1001)
        rig.store.failure = NotFound("no bucket")
        with pytest.raises(NotFound, match="no bucket"):
            await rig.names.read()
        rig.store.failure = None
        assert await rig.names.read() == ("a",)

    run(test, wait_ms=1)


def test_a_table_whose_configuration_does_not_answer_is_named_and_hides_none_of_the_others():
    async def test(rig):
        for names in (("a", "b", "c"), tuple(f"t{number:02}" for number in range(30))):
            rig.create(*names)
            rig.store.silent = names[1]
            assert set(names) <= set(await rig.names.read())
            rig.store.silent = ""

    run(test, max_age_ms=0)
