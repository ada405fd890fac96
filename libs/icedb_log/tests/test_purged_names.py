"""After a purge (T6): the name is free, what comes late is deleted, what stays has its time."""

import pytest
from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.drop import undrop_table
from icedb_log.clean.purge import has_work, read_now_ms
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, UnsupportedFormat
from icedb_log.table.stored_config import load_any_config
from icedb_log.warehouse import Warehouse
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import KEPT, SEAL_MS, create_again, drop, make_full, purge, rest_of


@pytest.fixture
def table():
    return make_full()


def test_t6_its_name_is_free_and_the_new_table_begins_empty(table):
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
    with pytest.raises(InvalidRequest, match="exists already"):
        create_again(table)
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


def test_t6_a_second_life_ends_as_the_first():
    table = SmallTable()
    incarnations = set()
    for number in range(3):
        table.append(number)
        assert table.ids() == [number]
        table.merge(full=True)
        drop(table, force=True)
        assert purge(table).state == "purged"
        create_again(table)
        incarnations.add(load_any_config(table)[0].incarnation)
    assert len(incarnations) == 3


def test_t6_what_comes_late_is_deleted_when_seals_are(table):
    drop(table, force=True)
    purge(table)
    late = [
        table.paths.data_key(partition="p=a", file_id=table.clock.new_id()),
        table.paths.pressure_key,
        table.paths.quarantine_key("late.json"),
    ]
    for key in late:
        table.store.put(key, b"late")
    table.stage([{"id": 1, "p": "a"}])
    table.clock.advance(SEAL_MS - 10)
    assert purge(table).deleted_count == 0
    assert set(late) < set(table.keys())
    warehouse = Warehouse(table.store, "wh")
    assert not has_work(warehouse.list_dropped()[0], now_ms=read_now_ms(warehouse))
    table.clock.advance(20)
    assert has_work(warehouse.list_dropped()[0], now_ms=read_now_ms(warehouse))
    assert purge(table).state == "purged"
    assert rest_of(table) == KEPT
    assert not has_work(warehouse.list_dropped()[0], now_ms=read_now_ms(warehouse) + 10 * SEAL_MS)
    create_again(table)


def test_t6_what_is_written_down_goes_when_its_retention_is_over(table):
    drop(table, force=True)
    purge(table, audit=AuditLog(table, clock=table.clock, owner="janitor"))
    table.clock.advance(SEAL_MS)
    purge(table)
    assert table.keys(table.paths.audit_prefix)
    table.clock.advance(table.config.audit_retention_ms)
    purge(table)
    assert table.keys(table.paths.audit_prefix) == []


def test_a_fence_that_cannot_be_read_stops_it(table):
    drop(table, force=True)
    table.store.put(table.paths.fence_key("merge"), b"damaged")
    with pytest.raises(CorruptLog, match="not a fence"):
        purge(table)
    table.store.put(table.paths.config_key, b"damaged")
    with pytest.raises(UnsupportedFormat):
        purge(table)
