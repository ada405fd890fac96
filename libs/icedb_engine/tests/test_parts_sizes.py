"""What a batch is when it is decoded: small ones and large ones are told apart in one way, and some are too large."""

import gzip
import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.limits import PROCESS_BYTES, EngineLimits, FlushUnitLimits
from icedb_engine.reading import batches
from icedb_log.jobs import SizeClass
from icedb_log.units import MIB

LIMITS = FlushUnitLimits(batch_decoded_bytes=40_000, batch_rows=2000)
SMALL = SizeClass("small", decoded_bytes=4000, row_count=200)
LARGE = replace(SMALL, takes="large")


def lines(count, width=1):
    return b"".join(b'{"n":%d,"t":"%s"}\n' % (number, b"x" * width) for number in range(count))


def arrow(count, width=1):
    table = pa.table({"n": range(count), "t": ["x" * width] * count})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parquet(count, width=1):
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(count), "t": ["x" * width] * count}), sink)
    return sink.getvalue()


def csv(count, width=1):
    return b"n,t\n" + b"".join(b"%d,%s\n" % (number, b"x" * width) for number in range(count))


def document(count, width=1):
    return b"[" + b",".join(lines(count, width).splitlines()) + b"]"


BODIES = {
    "ndjson": lines,
    "ndjson.gz": lambda *size: gzip.compress(lines(*size)),
    "json.gz": lambda *size: gzip.compress(document(*size)),
    "csv.gz": lambda *size: gzip.compress(csv(*size)),
    "arrow": arrow,
    "parquet": parquet,
}
CASES = pytest.mark.parametrize("staging_format", BODIES)
SIZES = pytest.mark.parametrize("size", [(5, 1000), (300, 1)], ids=["bytes", "rows"])


@pytest.fixture
def table(make_table):
    return make_table(limits=LIMITS)


def flush(table, *batches, sizes):
    table.sizes = sizes
    return table.flush(*batches)


@CASES
@SIZES
def test_a_batch_is_small_or_large_and_only_one_flush_takes_it(table, staging_format, size):
    small = table.stage(body=BODIES[staging_format](3, 1), staging_format=staging_format)
    large = table.stage(body=BODIES[staging_format](*size), staging_format=staging_format)
    found = flush(table, small, large, sizes=SMALL)
    assert (found.accepted, found.left_out, found.row_count) == ((small.batch_id,), (large.batch_id,), 3)
    found = flush(table, small, large, sizes=LARGE)
    assert (found.accepted, found.left_out, found.row_count) == ((large.batch_id,), (small.batch_id,), size[0])


@CASES
@pytest.mark.parametrize(
    ("size", "reason"), [((30, 5000), "40000 bytes"), ((2100, 1), "more than 2000 rows")], ids=["bytes", "rows"]
)
def test_a_batch_above_the_further_bound_is_refused_with_the_bound(table, staging_format, size, reason):
    batch = table.stage(body=BODIES[staging_format](*size), staging_format=staging_format)
    table.limits = replace(LIMITS, batch_decoded_bytes=400_000) if "rows" in reason else LIMITS
    assert flush(table, batch, sizes=SMALL).left_out == (batch.batch_id,)
    for sizes in (LARGE, None):
        (found,) = flush(table, batch, sizes=sizes).rejected.values()
        assert reason in found
        assert "smaller batches" in found


@pytest.mark.parametrize("staging_format", ["ndjson", "ndjson.gz"])
def test_lines_are_counted_before_those_that_are_no_text_are_looked_at_one_by_one(table, monkeypatch, staging_format):
    monkeypatch.setattr(batches, "_blank_undecodable", None)
    body = b"\xff\n" * 2001
    batch = table.stage(
        body=gzip.compress(body) if staging_format.endswith("gz") else body, staging_format=staging_format
    )
    (found,) = flush(table, batch, sizes=None).rejected.values()
    assert "more than 2000 rows" in found


@CASES
def test_where_small_ends_at_the_further_bound_a_larger_batch_is_refused_by_the_first_flush(table, staging_format):
    batch = table.stage(body=BODIES[staging_format](30, 5000), staging_format=staging_format)
    found = flush(table, batch, sizes=SizeClass("small", LIMITS.batch_decoded_bytes, LIMITS.batch_rows))
    assert len(found.rejected) == 1


@pytest.mark.parametrize("body", [gzip.compress(lines(3))[:-9], b"no gzip"])
def test_a_damaged_batch_is_refused_by_the_flush_of_small_ones(table, body):
    batch = table.stage(body=body, staging_format="ndjson.gz")
    assert flush(table, batch, sizes=LARGE).left_out == (batch.batch_id,)
    assert len(flush(table, batch, sizes=SMALL).rejected) == 1


def test_a_bomb_is_counted_a_piece_at_a_time_and_left_soon_after_the_bound(table, monkeypatch):
    bomb = table.stage(body=gzip.compress(b'{"a":1}\n' * (8 * MIB)), staging_format="ndjson.gz")
    read = []
    stream = pa.CompressedInputStream

    class Counting(stream):
        def read(self, nbytes=None):
            chunk = super().read(nbytes)
            read.append(len(chunk))
            return chunk

    monkeypatch.setattr(pa, "CompressedInputStream", Counting)
    assert flush(table, bomb, sizes=SMALL).left_out == (bomb.batch_id,)
    assert sum(read) <= 4 * MIB


def test_what_batches_take_is_not_the_engines():
    engine = EngineLimits(memory_bytes=1024 * MIB)
    assert engine.beside(0).memory_bytes == 1024 * MIB - PROCESS_BYTES
    assert engine.beside(228 * MIB).memory_bytes == 1024 * MIB - PROCESS_BYTES - 456 * MIB
    assert engine.beside(900 * MIB).memory_bytes == 256 * MIB
