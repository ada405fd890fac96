"""Footers of live files, and what is said of those that cannot be read."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_iceberg.unfit_files import read_row_counts
from icedb_log.errors import CorruptLog, InvalidRequest, Unavailable
from icedb_log.model import FileMarker
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore


@pytest.fixture
def store():
    return ScriptedStore(MemoryObjectStore(lambda: 1))


def put(store, path, row_count):
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(row_count)}), sink)
    store.put(path, sink.getvalue())
    return FileMarker(path, store.head(path).size_bytes, 1)


def test_rows_are_read_of_the_files_whose_markers_do_not_say(store):
    known = FileMarker("known", 10, 1, row_count=7)
    assert read_row_counts(store, [put(store, "a", 3), known, put(store, "b", 4)]) == {"a": 3, "b": 4}
    assert read_row_counts(store, [known]) == {}


def test_a_file_that_is_gone_or_damaged_is_named_with_what_finds_it_and_trouble_of_the_store_is_told_as_it_is(store):
    markers = [put(store, path, 3) for path in "ab"]
    store.script = [Fault("get_range", Effect.UNAVAILABLE, "b")]
    with pytest.raises(Unavailable):
        read_row_counts(store, markers)
    store.put("b", b"x" * markers[1].size_bytes)
    with pytest.raises(InvalidRequest, match=r"data file b: .*has to be known to publish .*`icedb fsck --deep`"):
        read_row_counts(store, markers)
    store.delete(["b"])
    with pytest.raises(CorruptLog, match=r"data file b is gone, .*`icedb fsck`"):
        read_row_counts(store, markers)
