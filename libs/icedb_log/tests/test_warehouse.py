"""A warehouse: tables below one root."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.drop import drop_table
from icedb_log.warehouse import RecentTables, Warehouse
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


def test_recent_tables_are_listed_once_in_a_while_and_a_table_that_was_seen_is_not_read_again():
    warehouse, clock = make_tables("a", "b")
    recent = RecentTables(clock, max_age_ms=1000, seen_ms=5000)

    def look():
        warehouse.store.calls.clear()
        return recent.list(warehouse), [call.key for call in warehouse.store.calls]

    assert look() == (("a", "b"), ["", "a/_icedb/table.json", "b/_icedb/table.json"])
    assert look() == (("a", "b"), [])
    create_table(warehouse.table("c"), TableConfig.create(name="c"))
    drop_table(warehouse.table("a"), clock=clock)
    clock.advance(1000)
    assert look() == (("a", "b", "c"), ["", "c/_icedb/table.json"])
    recent.forget("a")
    clock.advance(1000)
    assert look() == (("b", "c"), ["", "a/_icedb/table.json"])
    clock.advance(3000)
    assert look()[1] == ["", "a/_icedb/table.json", "b/_icedb/table.json"]


def test_threads_share_what_is_known_of_names_of_which_there_are_more_than_are_remembered(monkeypatch):
    monkeypatch.setattr("icedb_log.warehouse.MAX_KNOWN_NAMES", 3)
    warehouse, _ = make_tables()
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda at: warehouse.table(f"t{at * 7 % 12}").name, range(20_000)))
    finally:
        sys.setswitchinterval(switch_s)
    assert Counter(found).keys() == {f"t{at}" for at in range(12)}
