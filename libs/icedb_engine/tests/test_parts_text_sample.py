"""Of a column of text some rows are read, evenly, by the ranges that they lie in."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.reading import text_sample
from icedb_log.model import FileMarker
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore


@pytest.fixture
def add(tmp_path):
    store, files = MemoryObjectStore(FakeClock().now_ms), []

    def add(*texts, group_rows=10, name="p"):
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table({"n": range(len(texts)), name: pa.array(texts, pa.string())}), sink, row_group_size=group_rows
        )
        key = f"events/_data/{len(files)}.parquet"
        store.put_if_absent(key, sink.getvalue().to_pybytes())
        files.append(FileMarker(path=key, size_bytes=sink.getvalue().size, created_ms=1))
        return files

    add.store = store
    return add


def test_rows_come_evenly_from_the_first_files(add, monkeypatch):
    monkeypatch.setattr(text_sample, "SAMPLED_ROWS", 10)
    files = [add(*(f"{number}-{row}" for row in range(40))) for number in range(6)][-1]
    found = text_sample.sample_texts(add.store, files, "p")
    assert found == [f"{number}-{row}" for number in range(4) for row in range(0, 40, 4)]


def test_no_more_is_decoded_than_its_bound(add, monkeypatch):
    files = add(*("x" * 100 + str(row) for row in range(40)))
    monkeypatch.setattr(text_sample, "SAMPLED_BYTES", 1)
    assert len(text_sample.sample_texts(add.store, files, "p")) == 10, "one row group at least"
    add(*"abc")
    assert len(text_sample.sample_texts(add.store, files, "p")) == 10


def test_files_that_lack_the_column_have_nulls_and_others_are_passed_over(add):
    add("a", name="other")
    add("b")
    files = add(None, "c")
    gone = FileMarker(path="events/_data/gone.parquet", size_bytes=100, created_ms=1)
    add.store.put_if_absent("events/_data/bad.parquet", b"PAR1" * 30)
    bad = FileMarker(path="events/_data/bad.parquet", size_bytes=120, created_ms=1)
    assert text_sample.sample_texts(add.store, [gone, bad, *files], "p") == [None, "b", None, "c"]
    assert text_sample.sample_texts(add.store, add()[-1:], "p") == []
