"""A warehouse: tables below one root."""

import pytest
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.drop import drop_table
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore


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


def make_tables(*names):
    clock = FakeClock()
    store = ScriptedStore(MemoryObjectStore(clock.now_ms))
    warehouse = Warehouse(store)
    for name in names:
        create_table(warehouse.table(name), TableConfig.create(name=name))
    return warehouse, clock


def let_fail(warehouse, name, *, error=None):
    """Let the next read of a table's configuration go without an answer, or raise an error that nobody foresaw."""

    def fail():
        if error is not None:
            raise error

    effect = None if error is not None else Effect.UNAVAILABLE
    warehouse.store.script = [Fault("get", effect, f"{name}/_icedb/table.json", before=fail)]


@pytest.mark.parametrize("error", [None, KeyError("nobody foresaw this")], ids=str)
@pytest.mark.parametrize("count", [3, 12])
def test_a_table_whose_configuration_does_not_answer_is_listed_and_hides_none_of_the_others(error, count):
    names = tuple(f"t{number:02}" for number in range(count))
    warehouse, _ = make_tables(*names)
    let_fail(warehouse, "t01", error=error)
    assert warehouse.list_tables() == names
    assert warehouse.store.script == []
    let_fail(warehouse, "t01", error=error)
    assert [name for name in names if warehouse.is_listed(name)] == list(names)
    let_fail(warehouse, "t01")
    with pytest.raises(Unavailable):
        warehouse.has_table("t01")


def test_what_is_dropped_is_listed_although_another_one_does_not_answer():
    warehouse, clock = make_tables("a", "b", "c")
    for name in ("b", "c"):
        drop_table(warehouse.table(name), clock=clock)
    let_fail(warehouse, "b")
    with pytest.raises(Unavailable):
        warehouse.list_dropped()
    let_fail(warehouse, "b")
    told = {}
    assert [each.name for each in warehouse.list_dropped(on_problem=told.__setitem__)] == ["c"]
    assert [(name, type(error)) for name, error in told.items()] == [("b", Unavailable)]
    assert [each.name for each in warehouse.list_dropped()] == ["b", "c"]
