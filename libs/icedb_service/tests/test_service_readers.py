"""What a service keeps of each table between runs."""

from dataclasses import replace

from icedb_log.clean.vacuum import VacuumCaches, vacuum_table
from icedb_log.commit.table import Table
from icedb_log.holds.tags import create_tag
from icedb_service.readers import LEAST_BYTES, LogReaders
from icedb_sim.tables.small_table import SmallTable


def test_a_vacuum_fetches_log_files_and_tags_once():
    table = SmallTable()
    table.append(1)
    create_tag(Table.open(table, clock=table.clock), "q3")
    readers = LogReaders(table.clock)

    def fetched():
        table.store.calls.clear()
        reader = readers.of_table(table)
        vacuum_table(
            Table.open(table, clock=table.clock, reader=reader),
            caches=VacuumCaches(holds=readers.holds_of(table.paths)),
        )
        return [key for key in table.store.keys_of("get") if "/_log/" in key or "/holds/tag." in key]

    assert len(fetched()) == 2
    assert fetched() == []


def test_tags_of_a_table_that_is_not_kept_are_read_anew():
    readers = LogReaders(SmallTable().clock, max_bytes=LEAST_BYTES)
    first, second = SmallTable(), SmallTable(name="u")
    readers.of_table(first)
    kept = readers.holds_of(first.paths)
    assert readers.holds_of(first.paths) is kept
    readers.of_table(second)
    assert readers.holds_of(first.paths) is not kept


def test_a_thousand_small_logs_are_kept_and_a_large_one_leaves_half_of_the_room():
    clock, names = SmallTable().clock, [f"t{number}" for number in range(1000)]
    readers = LogReaders(clock)
    tables = [SmallTable(name=name) for name in names]
    kept = [readers.of_table(table) for table in tables]
    assert [readers.of_table(table) for table in tables] == kept
    for table in tables:
        table.append(1)
    large = SmallTable(name="large")
    for number in range(9):
        large.append(number)
    readers = LogReaders(clock, max_bytes=8 * LEAST_BYTES)
    for table in tables[:8]:
        readers.of_table(table)
    reader = readers.of_table(large)
    reader.read()
    assert 0 < reader.kept_bytes < LEAST_BYTES
    object.__setattr__(reader, "_cache", {"x": replace(reader.read().files[0], size_bytes=999 * LEAST_BYTES)})
    assert readers.of_table(large) is reader
    others = [readers._kept.get(table.paths.prefix) for table in tables[:8]]
    assert sum(each is not None for each in others) == 4
