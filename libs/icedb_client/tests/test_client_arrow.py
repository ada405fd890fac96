"""Columns stay columns: Arrow data, DataFrames, Parquet and Arrow files, and files cut without losing a row."""

import io
import sys
from datetime import UTC, date, datetime

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_client import arrow_bodies
from icedb_client.arrow_bodies import encode_arrow
from icedb_client.files import split_file
from icedb_log.errors import InvalidRequest
from icedb_log.formats import FORMATS
from pyarrow import ipc

TABLE = pa.table(
    {
        "n": list(range(1000)),
        "text": ["é" * (n % 50) for n in range(1000)],
        "ts": [datetime(2026, 1, 2, tzinfo=UTC)] * 1000,
        "d": [date(2026, 1, 2), None] * 500,
    }
)


def read(body):
    """Return a staged body as a table."""
    if body.format == "parquet":
        return pq.read_table(io.BytesIO(body.body))
    assert body.format == "arrow"
    opened = ipc.open_file if body.body.startswith(b"ARROW1") else ipc.open_stream
    return opened(body.body).read_all()


def as_stream(table):
    sink = io.BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return sink.getvalue()


def as_file(table):
    sink = io.BytesIO()
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return sink.getvalue()


def as_parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=300)
    return sink.getvalue()


KINDS = [as_stream, as_file, as_parquet]


@pytest.mark.parametrize(
    "make",
    [
        lambda table: table,
        lambda table: table.combine_chunks().to_batches()[0],
        lambda table: table.to_reader(max_chunksize=100),
        lambda table: duckdb.from_arrow(table),
    ],
    ids=["table", "batch", "reader", "another-library"],
)
def test_arrow_data_are_one_body(make):
    body = encode_arrow(make(TABLE))
    assert (body.format, body.row_count) == ("arrow", 1000)
    assert len(body.body) < body.raw_bytes / 2
    assert read(body).cast(TABLE.schema) == TABLE


def test_equal_data_give_equal_bytes_so_that_a_retry_is_the_same_batch():
    assert encode_arrow(TABLE).body == encode_arrow(TABLE).body


def test_a_pandas_index_is_a_column_only_if_it_has_a_name():
    frame = pd.DataFrame({"a": [1, 2]}, index=[7, 8])
    body = encode_arrow(frame)
    assert read(body).to_pylist() == [{"a": 1}, {"a": 2}]
    assert read(body).schema.metadata is None
    frame.index.name = "id"
    assert read(encode_arrow(frame)).to_pylist() == [{"a": 1, "id": 7}, {"a": 2, "id": 8}]
    levels = frame.set_index([pd.Index([1, 2], name="x"), pd.Index([3, 4])])
    assert read(encode_arrow(levels)).column_names == ["a"]


def test_what_is_no_table_is_refused():
    with pytest.raises(InvalidRequest, match="DataFrame cannot be Arrow"):
        encode_arrow(pd.DataFrame({"a": [1, "x"]}))
    with pytest.raises(InvalidRequest, match="DataFrame cannot be Arrow"):
        encode_arrow(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InvalidRequest, match="cannot be Arrow record batches"):
        encode_arrow(pa.chunked_array([[1, 2]]))


def test_one_batch_has_a_largest_size(monkeypatch):
    monkeypatch.setattr(arrow_bodies, "MAX_BATCH_BYTES", 1000)
    with pytest.raises(InvalidRequest, match="enqueue_arrow"):
        encode_arrow(TABLE)


def test_old_timestamps_of_a_file_that_is_cut_are_what_they_were_written_as(tmp_path):
    """In nanoseconds, as Arrow reads INT96 by default, 9999-12-31 is 1816-03-29."""
    moments = pa.table({"ts": pa.array([datetime(9999, 12, 31), datetime(1, 1, 1)] * 5, pa.timestamp("us"))})
    pq.write_table(moments, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    bodies = list(split_file(tmp_path / "old.parquet", batch_rows=4, batch_bytes=10))
    assert len(bodies) > 1
    assert pa.concat_tables(map(read, bodies)) == moments


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_small_file_is_one_batch_as_it_is(kind, is_pipe, tmp_path):
    content = kind(TABLE)
    if is_pipe:
        source = io.BufferedReader(Pipe(content))
    else:
        source = tmp_path / "a.bin"
        source.write_bytes(content)
    (body,) = split_file(source, batch_bytes=len(content)) if not is_pipe else split_file(source)
    assert body.row_count == 1000
    assert read(body).cast(TABLE.schema) == TABLE
    if not is_pipe:
        assert body.body == content


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_file_is_cut_and_every_row_comes_once(kind, tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(kind(TABLE))
    bodies = list(split_file(path, batch_rows=170, batch_bytes=4000))
    assert pa.concat_tables([read(body) for body in bodies]).cast(TABLE.schema) == TABLE
    assert max(body.row_count for body in bodies) <= 170
    assert max(read(body).nbytes for body in bodies) <= 4000
    assert [body.first_row for body in bodies][:1] == [1]
    assert [body.first_row + body.row_count for body in bodies[:-1]] == [body.first_row for body in bodies[1:]]
    rest = list(split_file(path, batch_rows=170, batch_bytes=4000, first_row=bodies[2].first_row))
    assert pa.concat_tables([read(body) for body in rest]).cast(TABLE.schema) == TABLE.slice(bodies[2].first_row - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_at_a_batch_makes_the_same_batch(kind, tmp_path):
    """It may have been taken already: under its id, other rows would be lost, or come twice (I8)."""
    path = tmp_path / "a.bin"
    rows = pa.table({"n": list(range(3000)), "s": ["x" * (number * 7 % 90) for number in range(3000)]})
    path.write_bytes(kind(rows))
    bounds = {"batch_rows": 2500, "batch_bytes": 9000}
    bodies = list(split_file(path, **bounds))
    assert len(bodies) > 5
    for body in bodies[1:]:
        again = next(split_file(path, first_row=body.first_row, **bounds))
        assert (again.body, again.row_count, again.first_row) == (body.body, body.row_count, body.first_row)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b'{"a":1}', r"a\.parquet: not parquet, as its name says"),
        ("a.parquet", b"PAR1garbage", r"a\.parquet: not a readable parquet file"),
        ("a.arrow", b"ARROW1garbage", r"a\.arrow: not a readable arrow file"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00garbage", "not a readable arrow file"),
    ],
)
def test_bad_files_are_named(name, content, words, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=words):
        list(split_file(path))


def test_each_binary_format_has_a_reader():
    assert arrow_bodies._READERS.keys() == {name for name, record in FORMATS.items() if not record.is_text}


@pytest.mark.parametrize("batch_rows", [1, 5000])
def test_whatever_a_reader_raises_of_damaged_bytes_names_the_file(batch_rows, monkeypatch, tmp_path):
    def fail(*_):
        raise ValueError("a page without values")

    path = tmp_path / "a.parquet"
    path.write_bytes(as_parquet(TABLE))
    monkeypatch.setitem(arrow_bodies._READERS, "parquet", fail)
    with pytest.raises(InvalidRequest, match=r"a\.parquet: not a readable parquet file: a page without values"):
        list(split_file(path, batch_rows=batch_rows, batch_bytes=1 if batch_rows == 1 else 1 << 20))


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch, tmp_path, client, create):
    create()
    path = tmp_path / "a.parquet"
    content = as_parquet(TABLE)
    path.write_bytes(content)
    frame = pd.DataFrame({"a": [1]})
    for module in ("pyarrow", "pyarrow.parquet", "pyarrow.ipc"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidRequest, match=r"pip install pyarrow$"):
        client.enqueue("events", frame)
    with pytest.raises(InvalidRequest, match=r"cut into several batches.*pip install pyarrow$"):
        list(split_file(path, batch_bytes=len(content) - 1))
    # A small file needs nothing.
    (body,) = split_file(path, batch_bytes=len(content))
    assert (body.body, body.row_count) == (content, None)


def test_arrow_data_of_any_size_become_many_batches(client, create, warehouse):
    create()
    batches = list(client.enqueue_arrow("events", TABLE.to_reader(max_chunksize=333), batch_rows=400))
    assert [batch.row_count for batch in batches] == [333, 333, 334]
    assert len({batch.batch_id for batch in batches}) == 3
    found = [read_staged(warehouse, batch) for batch in batches]
    assert pa.concat_tables(found).cast(TABLE.schema) == TABLE
    assert list(client.enqueue_arrow("events", TABLE.slice(0, 0))) == []


def test_the_client_stages_each_kind_in_its_format(client, create, warehouse, tmp_path):
    create()
    assert client.enqueue("events", TABLE).key.endswith(".arrow")
    assert client.enqueue("events", pd.DataFrame({"a": [1]})).row_count == 1
    assert client.enqueue("events", as_parquet(TABLE)).key.endswith(".parquet")
    assert client.enqueue("events", as_file(TABLE)).key.endswith(".arrow")
    assert client.enqueue("events", b" [{}]").key.endswith(".json")
    assert client.enqueue("events", b"a,b\n1,2\n", data_format="csv").key.endswith(".csv")
    path = tmp_path / "a.parquet"
    path.write_bytes(as_parquet(TABLE))
    batch = client.enqueue("events", path)
    assert (batch.row_count, batch.key.rpartition(".")[2]) == (1000, "parquet")
    assert warehouse.store.get(batch.key).body == path.read_bytes()
    for wrong in (5, None, "text", {"a": 1}):
        with pytest.raises(InvalidRequest, match="iterable of objects"):
            client.enqueue("events", wrong)
    with pytest.raises(InvalidRequest, match="for bytes and files"):
        client.enqueue("events", [{}], data_format="csv")
    with pytest.raises(InvalidRequest, match="format 'xml' is unknown"):
        client.enqueue("events", b"x", data_format="xml")
    with pytest.raises(InvalidRequest, match="said to be parquet"):
        client.enqueue("events", b"x", data_format="parquet")


def read_staged(warehouse, batch):
    return ipc.open_stream(warehouse.store.get(batch.key).body).read_all()


class Pipe(io.RawIOBase):
    """Bytes that can be read once, from the beginning."""

    def __init__(self, content):
        self.left = content

    def readable(self):
        return True

    def readinto(self, buffer):
        count = min(len(buffer), 1000, len(self.left))
        buffer[:count], self.left = self.left[:count], self.left[count:]
        return count
