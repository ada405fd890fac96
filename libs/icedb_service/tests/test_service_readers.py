"""What a service keeps of each table between runs."""

from icedb_log.clean.vacuum import VacuumCaches, vacuum_table
from icedb_log.commit.table import Table
from icedb_log.holds.pins import create_pin
from icedb_service.readers import LogReaders
from icedb_sim.tables.small_table import SmallTable


def test_a_vacuum_fetches_log_files_and_pins_once():
    table = SmallTable()
    table.append(1)
    create_pin(Table.open(table, clock=table.clock), "q3")
    readers = LogReaders(table.clock)

    def fetched():
        table.store.calls.clear()
        reader = readers.of_table(table)
        vacuum_table(
            Table.open(table, clock=table.clock, reader=reader),
            caches=VacuumCaches(holds=readers.holds_of(table.paths)),
        )
        return [key for key in table.store.keys_of("get") if "/_log/" in key or "/holds/pin." in key]

    assert len(fetched()) == 2
    assert fetched() == []


def test_pins_of_a_table_that_is_not_kept_are_read_anew():
    readers = LogReaders(SmallTable().clock, max_tables=1)
    first, second = SmallTable(), SmallTable(name="u")
    readers.of_table(first)
    kept = readers.holds_of(first.paths)
    assert readers.holds_of(first.paths) is kept
    readers.of_table(second)
    assert readers.holds_of(first.paths) is not kept
