"""Which keys of the warehouse's own bucket are objects of a table, and of which one."""

import asyncio
from types import SimpleNamespace

import pytest
from icedb_gateway.operations import TableObjects, _Place
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore


@pytest.fixture
def objects():
    clock = FakeClock()
    warehouse = Warehouse(MemoryObjectStore(clock.now_ms), "lake")
    found = TableObjects(SimpleNamespace(warehouse=warehouse, reads=SimpleNamespace(work=None), clock=clock))
    found._places[None] = _Place("bucket", "lake/")
    return found


@pytest.mark.parametrize(
    ("folder", "table"),
    [("t", "t"), ("t.2", "t"), ("t.13", "t"), ("t.1", None), ("t.02", None), ("t.x", None), ("T", None)],
)
def test_t4_later_tables_of_a_name_are_that_names(objects, folder, table):
    key = f"lake/{folder}/_data/p=a/0.parquet"
    found = asyncio.run(objects.parse("bucket", key))
    assert (found and (found.table, found.path)) == (table and (table, key))
    assert asyncio.run(objects.parse("elsewhere", key)) is None
