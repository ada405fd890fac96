"""After a purge (T4, T5): the next table of the name lies under another prefix, and what comes late is deleted."""

import pytest
from icedb_log.clean.deletion import AuditLog
from icedb_log.errors import InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, find_newest, load_any_config, read_table_config
from icedb_log.trash.drop import undrop_table
from icedb_log.trash.purge import has_work, read_now_ms
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call
from icedb_sim.tables.table_steps import KEPT, SEAL_MS, create_again, drop, make_full, mark_of, purge, rest_of


@pytest.fixture
def table():
    return make_full()


def first_of(table):
    return TableStore(table.store, table.paths.numbered(1))


def test_keys_of_later_tables_of_a_name():
    first = TablePaths("t", "wh/t")
    second = first.numbered(2)
    assert (second.prefix, second.name, second.number, first.number) == ("wh/t.2", "t", 2, 1)
    assert (second.numbered(1), second.numbered(13).number, second.sibling("u").prefix) == (first, 13, "wh/u")
    assert TablePaths("t", "t.7").numbered(1).prefix == "t"


def test_t4_a_name_is_free_when_its_table_is_purged_and_the_next_one_lies_elsewhere(table):
    old = TableStore(table.store, table.paths)
    drop(table, force=True)
    with pytest.raises(InvalidRequest, match="is being purged: nothing brings it back"):
        create_again(table)
    purge(table)
    with pytest.raises(NotFound, match=r"does not exist: it was dropped at .* and purged"):
        table.status()
    with pytest.raises(NotFound, match="does not exist"):
        drop(table)
    with pytest.raises(NotFound, match="does not exist"):
        undrop_table(table, clock=table.clock)
    create_again(table, merge_fan_in=4)
    assert (table.paths.prefix, mark_of(old).newest) == ("wh/t.2", 2)
    with pytest.raises(InvalidRequest, match=r"exists already \(wh/t.2/_icedb/table.json\)"):
        create_again(table)
    with pytest.raises(Unavailable, match=r"lies at wh/t\.2 now"):
        read_table_config(old)
    assert table.ids() == []
    table.append(10)
    table.append(11)
    table.merge(full=True)
    table.clock.advance(70_000)
    table.vacuum()
    table.sweep()
    assert table.ids() == [10, 11]
    drop(table)
    undrop_table(table, clock=table.clock)
    assert table.ids() == [10, 11]


def test_t4_each_life_has_a_prefix_of_its_own():
    table = SmallTable()
    warehouse = Warehouse(table.store, "wh")
    prefixes = []
    for number in range(4):
        assert warehouse.table("t").paths == table.paths
        assert (warehouse.list_tables(), warehouse.has_table("t")) == (("t",), True)
        table.append(number)
        assert table.ids() == [number]
        table.merge(full=True)
        prefixes.append(table.paths.prefix)
        drop(table, force=True)
        assert purge(table).state == "purged"
        assert (warehouse.list_tables(), warehouse.has_table("t")) == ((), False)
        assert [each.place.paths.prefix for each in warehouse.list_dropped()] == prefixes
        create_again(table)
        with pytest.raises(Unavailable):
            read_table_config(warehouse.table("t"))  # it remembers the one before, and looks again
    assert prefixes == ["wh/t", "wh/t.2", "wh/t.3", "wh/t.4"]


def test_t4_of_those_who_create_at_once_one_wins():
    """Another creation comes just before each call of one."""
    winners = set()

    def make():
        table = SmallTable()
        drop(table, force=True)
        purge(table)
        return table

    def create(table, who):
        try:
            create_table(TableStore(table.store, table.paths), table.config.model_copy(update={"merge_fan_in": who}))
        except InvalidRequest as error:
            assert "exists already" in str(error)
        else:
            found.append(who)

    found = []
    for table, error, _ in at_each_call(make, lambda table: create(table, 2), lambda table: create(table, 3)):
        assert error is None
        (winner,) = found
        found.clear()
        winners.add(winner)
        newest = find_newest(table)
        assert (newest.place.paths.prefix, newest.config.merge_fan_in) == ("wh/t.2", winner)
        assert not table.keys("wh/t.3")
    assert winners == {3}, "the one that came in between was faster, wherever the other one stood"


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE])
def test_t4_a_creation_that_was_cut_off_is_made_again(effect):
    def make():
        table = SmallTable()
        drop(table, force=True)
        purge(table)
        return table

    for table in try_each_call(make, create_again, effect):
        try:
            table.paths = create_table(table, table.config).paths
        except InvalidRequest as error:
            assert "exists already" in str(error)
            table.paths = find_newest(table).place.paths
        assert table.paths.prefix == "wh/t.2"
        table.append(1)
        assert table.ids() == [1]


def test_t4_a_creator_that_sleeps_through_a_whole_life_of_the_next_prefix_takes_the_one_after():
    table = SmallTable()
    drop(table, force=True)
    purge(table)
    old = TableStore(table.store, table.paths)

    def live_and_die():
        create_again(table)
        table.append(7)
        drop(table, force=True)
        purge(table)

    table.store.script = [Fault("put_if_absent", None, "wh/t.2/_icedb/table.json", before=live_and_die)]
    assert create_table(old, table.config).paths.prefix == "wh/t.3"
    assert find_newest(old).place.paths.prefix == "wh/t.3"


def test_a_creation_that_nobody_ended_is_no_table():
    table = SmallTable()
    drop(table, force=True)
    purge(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "wh/t.2/")]
    with pytest.raises(Crash):
        create_again(table)
    warehouse = Warehouse(table.store, "wh")
    assert warehouse.list_tables() == ()
    with pytest.raises(NotFound):
        read_table_config(warehouse.table("t"))
    purge(table)
    create_again(table)
    assert table.paths.prefix == "wh/t.2"


def test_t5_what_comes_late_is_deleted_when_nothing_sleeps_any_more(table):
    drop(table, force=True)
    purge(table)
    old = first_of(table)
    late = [
        table.paths.data_key(partition="p=a", file_id=table.clock.new_id()),
        table.paths.pressure_key,
        table.paths.quarantine_key("late.json"),
        table.paths.fence_key("ingest"),
    ]
    for key in late:
        table.store.put(key, b"late")
    table.stage([{"id": 1, "p": "a"}])
    warehouse = Warehouse(table.store, "wh")
    table.clock.advance(SEAL_MS - 10)
    assert purge(table).deleted_count == 0
    assert set(late) < set(table.keys())
    assert not has_work(warehouse.list_dropped()[0], now_ms=read_now_ms(warehouse))
    table.clock.advance(20)
    assert has_work(warehouse.list_dropped()[0], now_ms=read_now_ms(warehouse))
    create_again(table)
    table.append(1)
    table.clock.advance(SEAL_MS)
    assert purge(table).state == "kept"
    assert table.ids() == [1]
    table.paths = old.paths
    assert rest_of(table) == KEPT
    assert not has_work(warehouse.list_dropped()[0], now_ms=read_now_ms(warehouse) + 10 * SEAL_MS)


def test_t5_what_is_written_down_goes_when_its_retention_is_over(table):
    drop(table, force=True)
    purge(table, audit=AuditLog(table, clock=table.clock, owner="janitor"))
    table.clock.advance(SEAL_MS)
    purge(table)
    assert table.keys(table.paths.audit_prefix)
    table.clock.advance(table.config.audit_retention_ms)
    purge(table)
    assert table.keys(table.paths.audit_prefix) == []


def test_a_mark_that_cannot_be_read_stops_it(table):
    drop(table, force=True)
    table.store.put(table.paths.config_key, b"damaged")
    with pytest.raises(UnsupportedFormat):
        purge(table)


def test_t1_the_mark_of_the_first_table_is_no_state_that_was_there_before():
    table = SmallTable()
    first, bodies = first_of(table), []
    for number in range(3):
        drop(table, force=True)
        purge(table)
        create_again(table)
        bodies.append(first.store.get(first.paths.config_key).body)
        assert load_any_config(first)[0].dropped.newest == number + 2
    assert len(set(bodies)) == 3
