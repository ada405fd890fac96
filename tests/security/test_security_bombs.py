"""Batches that are small as they come and large, or endless, as they are read: refused before memory is taken for them."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.errors import BatchRejected
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading import read_typed
from icedb_engine.reading.read_typed import read_parquet
from icedb_log.units import KIB, MIB

LIMITS = FlushUnitLimits(batch_decoded_bytes=1 * MIB)


def varint(value, width):
    """Return a Thrift integer in so many bytes, more than it needs."""
    value <<= 1
    out = bytearray()
    for place in range(width):
        out.append(value & 127 | (128 if place < width - 1 else 0))
        value >>= 7
    return bytes(out)


def spell(value):
    return varint(value, (value.bit_length() + 1 + 6) // 7)


def write_parquet(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def make_lie(body):
    """Return a file whose footer says that its row groups are small."""
    told = spell(pq.read_metadata(io.BytesIO(body)).row_group(0).total_byte_size)
    assert told in body
    lying = body.replace(told, varint(10, len(told)))
    assert pq.read_metadata(io.BytesIO(lying)).row_group(0).total_byte_size == 10
    return lying


@pytest.mark.parametrize(
    "make_columns",
    [
        lambda: {"s": [b"\0" * (8 * MIB)]},
        lambda: {f"s{i}": [b"\0" * (100 * KIB)] for i in range(20)},
        lambda: {"s": ["x" * 1000] * 8000},
    ],
    ids=["one page", "many columns", "many rows"],
)
def test_a_footer_that_lies_about_sizes_is_not_believed(make_columns, monkeypatch):
    body = make_lie(write_parquet(pa.table(make_columns()), use_dictionary=False))
    assert len(body) < 20 * KIB
    monkeypatch.setattr(pq, "ParquetFile", lambda *_a, **_k: pytest.fail("pages are decoded"))
    with pytest.raises(BatchRejected, match="more than 1048576 bytes without compression"):
        read_parquet(body, LIMITS)


def test_a_dictionary_that_is_too_large_is_not_read(monkeypatch):
    body = make_lie(write_parquet(pa.table({"s": ["x" * (2 * MIB)] * 10}), use_dictionary=True))
    monkeypatch.setattr(pq, "ParquetFile", lambda *_a, **_k: pytest.fail("pages are decoded"))
    with pytest.raises(BatchRejected, match="without compression"):
        read_parquet(body, LIMITS)


def test_pages_without_number_are_not_read(monkeypatch):
    body = write_parquet(pa.table({"n": list(range(1000))}), data_page_size=1, write_batch_size=1, use_dictionary=False)
    monkeypatch.setattr(read_typed, "MAX_PAGES", 100)
    with pytest.raises(BatchRejected, match="more than 100 pages"):
        read_parquet(body, LIMITS)


def test_a_million_nulls_in_a_few_bytes_are_counted():
    body = write_parquet(pa.table({"n": pa.nulls(20_000_000, pa.int64())}))
    assert len(body) < 64 * KIB
    with pytest.raises(BatchRejected, match=r"the limit is 1048576 bytes|more than 1048576 bytes"):
        read_parquet(body, LIMITS)


def test_honest_files_are_read():
    table = pa.table({"s": ["a", "b", None] * 1000, "n": list(range(3000)), "l": [[1], [], None] * 1000})
    for options in (
        {},
        {"use_dictionary": False},
        {"data_page_version": "2.0"},
        {"row_group_size": 100},
        {"write_page_index": True},
    ):
        assert read_parquet(write_parquet(table, **options), LIMITS).row_count == 3000


def test_damaged_pages_are_the_batchs_own_fault():
    body = write_parquet(pa.table({"s": ["a", "b"] * 100}), use_dictionary=False)
    chance = random.Random(7)
    for _ in range(300):
        damaged = bytearray(body)
        damaged[chance.randrange(4, 60)] = chance.randrange(256)
        try:
            read_parquet(bytes(damaged), LIMITS)
        except BatchRejected as error:
            assert len(str(error)) < 600
