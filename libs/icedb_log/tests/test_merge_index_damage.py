"""An index that is kept while the log is damaged, and after a person has restored it."""

import pytest
from icedb_log.errors import CorruptLog
from icedb_log.log.codec import encode_log_file
from icedb_log.merge.merge_plan import MergeIndex, plan_merge
from icedb_log.model import FileMarker, LogFile
from icedb_sim.tables.small_table import SmallTable

PARTITIONS = [f"x{number}" for number in range(24)]


def append_everywhere(table, number):
    table.stage([{"id": number, "p": partition} for partition in PARTITIONS])
    table.flush()


def put_damaged(table):
    markers = tuple(FileMarker(f"elsewhere/{name}.parquet", 1, 1, row_count=1) for name in "ab")
    log = LogFile(table.clock.now_ms(), {"id": "BIGINT"}, markers, commit_id=table.clock.new_id())
    key = table.paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id, is_merged=False)
    table.store.put(key, encode_log_file(log))
    return key


def test_an_index_forgets_no_change_over_a_damaged_log():
    table = SmallTable(merge_fan_in=2)
    index = MergeIndex(table.paths, table.config)
    append_everywhere(table, 1)
    plan_merge(index, table.view())
    append_everywhere(table, 2)
    key = put_damaged(table)
    with pytest.raises(CorruptLog, match="outside"):
        plan_merge(index, table.view())
    table.store.delete([key])
    kept = plan_merge(index, table.view())
    assert len(kept.groups) == len(PARTITIONS)
    assert kept == plan_merge(MergeIndex(table.paths, table.config), table.view())
