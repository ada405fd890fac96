"""A warehouse: tables below one root."""

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore


@pytest.mark.parametrize(("root", "prefix"), [("", "events"), ("wh", "wh/events"), ("a/b", "a/b/events")])
def test_a_table_lies_below_the_root(root, prefix):
    warehouse = Warehouse(MemoryObjectStore(FakeClock().now_ms), root)
    assert warehouse.table("events").paths.prefix == prefix


@pytest.mark.parametrize("name", ["../x", "", "A", "a/b"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(InvalidRequest):
        Warehouse(MemoryObjectStore(FakeClock().now_ms)).table(name).paths


@pytest.mark.parametrize("root", ["", "wh"])
def test_tables_are_listed_that_have_a_configuration(root):
    store = MemoryObjectStore(FakeClock().now_ms)
    warehouse = Warehouse(store, root)
    for name in ("b", "a", "a2"):
        create_table(TableStore(store, warehouse.table(name).paths), TableConfig.create(name=name))
    store.put(f"{root}/noconfig/_log/x".lstrip("/"), b"")
    store.put(f"{root}/Not-a-name/_icedb/table.json".lstrip("/"), b"")
    store.put("elsewhere.txt", b"")
    store.put("whatever/c/_icedb/table.json", b"")
    assert warehouse.list_tables() == ("a", "a2", "b")
