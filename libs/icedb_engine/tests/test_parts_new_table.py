"""A table with the policies of a new one, the whole way: batches in, widenings, bad rows, merges, and what the log says."""

import orjson
import pytest
from icedb_engine.local_engine import LocalEngine
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import ScriptedStore


class NewTable:
    def __init__(self):
        self.clock = FakeClock()
        self.store = ScriptedStore(MemoryObjectStore(self.clock.now_ms))
        self.paths = Warehouse(self.store).table("events").paths
        create_table(TableStore(self.store, self.paths), TableConfig.create(name="events"))

    def send(self, *lines):
        body = b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
        batch_id = new_batch_id(self.clock)
        stage_batch(TableStore(self.store, self.paths), body=body, staging_format="ndjson", batch_id=batch_id)
        self.clock.advance(1)
        self.store.calls.clear()
        writer = LocalEngine(self.store, clock=self.clock).writer
        result = flush_table(Table.open(TableStore(self.store, self.paths), clock=self.clock, owner="flush"), writer)
        self.clock.advance(1)
        return result

    def merge(self):
        merger = LocalEngine(self.store, clock=self.clock).merger
        merge_table(
            Table.open(TableStore(self.store, self.paths), clock=self.clock, owner="merge"),
            merger,
            options=MergeOptions(full=True),
        )
        self.clock.advance(1)

    def snapshot(self):
        return fold(LogReader(TableStore(self.store, self.paths), clock=self.clock).read())

    def newest_log(self):
        key = list_all(self.store, self.paths.log_prefix).objects[-1].key
        return decode_log_file(key, self.store.get(key).body)

    def data_reads(self):
        return [key for key in self.store.keys_of("get", "get_range") if key.startswith(self.paths.data_prefix)]


@pytest.fixture
def table():
    return NewTable()


def test_one_fraction_in_an_integer_column_refuses_nothing(table):
    table.send(*({"n": number} for number in range(10)))
    result = table.send({"n": 1}, {"n": 0.5}, {"n": 2})
    assert (result.batch_count, result.row_count, result.bad_row_count) == (1, 3, 0)
    assert dict(table.snapshot().schema) == {"n": "DOUBLE"}
    assert table.data_reads() == [], "the log proves it"
    assert list_quarantined(table) == ()


def test_bad_rows_alone_are_set_aside_each_with_its_reason(table):
    table.send({"n": 1, "s": "a"})
    result = table.send({"n": 0.5, "s": "b"}, b"{", {"n": "text"}, {"n": 2, "s": 5}, {"n": 3, "s": "c"})
    assert (result.batch_count, result.row_count, result.bad_row_count) == (1, 2, 3)
    assert dict(table.snapshot().schema) == {"n": "DOUBLE", "s": "VARCHAR"}
    (entry,) = list_quarantined(table)
    lines = entry.reason.split("\n")
    assert [words in line for words, line in zip(("line 2", "line 3", "line 4"), lines, strict=True)] == [True] * 3
    assert [number for number, _ in entry.row_reasons] == [2, 3, 4]
    assert "JSON object" in entry.row_reasons[0][1]
    assert "column 'n'" in entry.row_reasons[1][1]
    assert "column 's'" in entry.row_reasons[2][1]


def test_long_integers_keep_a_column_as_it_is_through_merges_and_no_data_file_is_read_for_that(table):
    table.send({"n": 2**53 + 1})
    table.send({"n": 2})
    for _ in range(2):
        result = table.send({"n": 0.5}, {"n": 3})
        assert (result.row_count, result.bad_row_count) == (1, 1)
        assert table.data_reads() == []
        table.merge()
        assert table.newest_log().inexact == {"n": True}
    assert dict(table.snapshot().schema) == {"n": "BIGINT"}
    assert table.snapshot().row_count == 4
    reason = list_quarantined(table)[0].reason
    assert "which DOUBLE cannot hold exactly, by its log" in reason
    assert "`icedb table alter events --column n:DOUBLE`, then `icedb quarantine retry events --all`" in reason
