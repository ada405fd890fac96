"""Parquet and Arrow files as other programs write them: every encoding and compression, and the types they like."""

import io
from datetime import date, datetime

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.errors import BatchTooLarge
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading.read_typed import read_arrow, read_parquet
from icedb_log.units import MIB

LIMITS = FlushUnitLimits()
DAY, MOMENT = date(2023, 6, 7), datetime(2023, 6, 7, 10)
FRAME = pl.DataFrame(
    {
        "i": [1, 2, None],
        "s": ["a", "longer than twelve bytes", None],
        "c": pl.Series(["x", "y", "x"], dtype=pl.Categorical),
        "e": pl.Series(["x", None, "y"], dtype=pl.Enum(["x", "y"])),
        "t": [MOMENT, None, MOMENT],
        "d": [DAY, DAY, None],
        "b": [True, None, False],
        "f": pl.Series([0.5, None, 1.5], dtype=pl.Float32),
        "o": [{"k": ["a"]}, None, {"k": []}],
        "l": [[1, 2], [], None],
    }
)
ROWS = [
    {"i": 1, "s": "a", "c": "x", "e": "x", "t": MOMENT, "d": DAY, "b": True, "f": 0.5, "o": '{"k":["a"]}', "l": "[1,2]"},
    {"i": 2, "s": "longer than twelve bytes", "c": "y", "e": None, "t": None, "d": DAY, "b": None, "f": None, "o": None, "l": "[]"},
    {"i": None, "s": None, "c": "x", "e": "y", "t": MOMENT, "d": None, "b": False, "f": 1.5, "o": '{"k":[]}', "l": None},
]  # fmt: skip


@pytest.mark.parametrize("write", [pl.DataFrame.write_ipc, pl.DataFrame.write_ipc_stream], ids=["file", "stream"])
@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("level", [pl.CompatLevel.oldest(), pl.CompatLevel.newest()], ids=["old", "new"])
def test_arrow_as_polars_writes_it(write, compression, level):
    sink = io.BytesIO()
    write(FRAME, sink, compression=compression, compat_level=level)
    assert read_arrow(sink.getvalue(), LIMITS).rows.to_pylist() == ROWS


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_parquet_as_polars_writes_it(compression):
    sink = io.BytesIO()
    FRAME.write_parquet(sink, compression=compression)
    assert read_parquet(sink.getvalue(), LIMITS).rows.to_pylist() == ROWS


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_an_arrow_file_of_several_batches_and_dictionaries_that_grow(compression):
    table = pa.table({"s": pa.array(["a", "b"]).dictionary_encode(), "n": [1, None]})
    more = pa.table({"s": pa.array(["a", "b", "c"]).dictionary_encode(), "n": [3, 4, 5]})
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=options) as file:
        file.write_table(table)
        file.write_table(more)
    assert read_arrow(sink.getvalue(), LIMITS).rows.to_pylist() == [*table.to_pylist(), *more.to_pylist()]


COLUMNS = {
    "BOOLEAN": pa.array([True, None, False] * 3),
    "INT32": pa.array([1, None, -(2**31)] * 3, pa.int32()),
    "INT64": pa.array([1, None, 2**62] * 3),
    "FLOAT": pa.array([0.5, None, 1.5] * 3, pa.float32()),
    "DOUBLE": pa.array([0.1, None, 1e300] * 3),
    "TEXT": pa.array(["a", None, "ab", "abc", "é", "", "abd", "abd", None]),
    "LARGE TEXT": pa.array(["a", None, "ab"] * 3, pa.large_string()),
    "DATE": pa.array([DAY, None, DAY] * 3),
    "TIMESTAMP": pa.array([MOMENT, None, MOMENT] * 3, pa.timestamp("us")),
}
ENCODINGS = ("PLAIN", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT", "RLE")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_every_encoding_of_parquet_is_read(kind, version):
    table = pa.table({"v": COLUMNS[kind]})
    taken = []
    for encoding in (*ENCODINGS, None):
        how = (
            {"use_dictionary": True}
            if encoding is None
            else {"use_dictionary": False, "column_encoding": {"v": encoding}}
        )
        sink = io.BytesIO()
        try:
            pq.write_table(table, sink, data_page_version=version, **how)
        except (pa.ArrowException, OSError):
            continue  # not an encoding of this type
        taken.append(encoding)
        assert read_parquet(sink.getvalue(), LIMITS).rows.column("v").to_pylist() == table.column("v").to_pylist(), (
            encoding
        )
    assert len(taken) >= 2
    assert kind != "TEXT" or {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"} <= set(taken)


def test_text_beside_nested_columns_in_a_delta_encoding():
    table = pa.table({"s": ["a", "ab", None], "o": [{"k": "x"}, None, {"k": "xy"}]})
    sink = io.BytesIO()
    encodings = {"s": "DELTA_BYTE_ARRAY", "o.k": "DELTA_LENGTH_BYTE_ARRAY"}
    pq.write_table(table, sink, use_dictionary=False, column_encoding=encodings)
    assert read_parquet(sink.getvalue(), LIMITS).rows.to_pylist() == [
        {"s": "a", "o": '{"k":"x"}'}, {"s": "ab", "o": None}, {"s": None, "o": '{"k":"xy"}'}
    ]  # fmt: skip


def test_a_bomb_of_equal_beginnings_is_not_unpacked():
    sink = io.BytesIO()
    text = pa.table({"s": ["x" * 100_000] * 1000})
    pq.write_table(text, sink, use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"})
    assert len(sink.getvalue()) < MIB
    before = pa.total_allocated_bytes()
    with pytest.raises(BatchTooLarge, match="bytes in memory"):
        read_parquet(sink.getvalue(), FlushUnitLimits(batch_decoded_bytes=16 * MIB))
    assert pa.total_allocated_bytes() - before < MIB


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw"])
def test_parquet_as_duckdb_writes_it(tmp_path, version, codec):
    path = tmp_path / "a.parquet"
    with duckdb.connect() as engine:
        engine.execute(
            "COPY (SELECT i, 'text ' || i AS s, i / 4 AS f, i % 2 = 0 AS b, DATE '2023-06-07' AS d, {'k': i} AS o "
            f"FROM range(5000) r(i)) TO '{path}' (PARQUET_VERSION {version}, CODEC {codec}, DICTIONARY_SIZE_LIMIT 10)"
        )
    found = read_parquet(path.read_bytes(), LIMITS).rows
    assert found.num_rows == 5000
    assert found.slice(4999).to_pylist() == [
        {"i": 4999, "s": "text 4999", "f": 1249.75, "b": False, "d": DAY, "o": '{"k":4999}'}
    ]


def test_a_damaged_arrow_file_has_a_reason(make_table):
    sink = io.BytesIO()
    FRAME.write_ipc(sink)
    body = sink.getvalue()
    table = make_table()
    for damaged in (body[:-1], body[:-40] + body[-6:], body[: len(body) // 2] + body[-6:], b"ARROW1\0\0" + body[-10:]):
        assert "rrow" in table.reason(table.stage(body=damaged, staging_format="arrow"))
