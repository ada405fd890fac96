"""What partitions hold is the same by sums of chunks as by a look at each file."""

from dataclasses import replace

from icedb_log.log.state import LogState
from icedb_log.merge.small_files import MANY_SMALL_FILES
from icedb_log.serving.partition_sizes import PartitionSize, measure_partitions
from icedb_log.table.partition_removal import list_partitions
from icedb_sim.tables.small_table import SmallTable


def measured(table, **config):
    live = LogState.of(table.view()).live
    return measure_partitions(live, paths=table.paths, config=table.config.model_copy(update=config))


def test_sums_are_those_of_the_files():
    table = SmallTable()
    for number in range(12):
        table.append(number, number + 100, p="abc"[number % 3])
    table.merge()
    found = measured(table)
    for info, size in zip(list_partitions(table.view(), table.paths), found, strict=True):
        assert (info.path, info.file_count, info.row_count) == (size.path, size.file_count, size.row_count)
        assert (info.size_bytes, info.newest_ms) == (size.size_bytes, size.newest_ms)
        assert size.small_count == size.file_count
    assert [each.small_count for each in measured(table, target_file_bytes=1)] == [0, 0, 0]
    assert sum(each.file_count for each in found) < MANY_SMALL_FILES


def test_an_empty_table_has_no_partition_and_one_without_fields_has_one():
    assert measured(SmallTable()) == ()
    table = SmallTable(partition=())
    table.append(1)
    (only,) = measured(table)
    assert replace(only, size_bytes=0, newest_ms=0) == PartitionSize("", 1, 1, 1, 0, 0)
