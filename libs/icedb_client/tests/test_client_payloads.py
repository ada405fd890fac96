"""The first rows of a stored batch: little of it, in words for people, whatever is wrong with it."""

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from icedb_client.files import PREVIEW_BYTES, format_of_key, preview_lines
from pyarrow import ipc


@pytest.mark.parametrize(
    ("key", "staging_format"),
    [
        ("t/_icedb/quarantine/id.batch-0a.ndjson.zst", "ndjson.zst"),
        ("t/_icedb/quarantine/id.rows-0a.ndjson.zst", "ndjson.zst"),
        ("t/_icedb/quarantine/id.batch-0a.json", "json"),
        ("t/_icedb/quarantine/id.batch-0a.csv.gz", "csv.gz"),
        ("t/_icedb/quarantine/id.parquet", "parquet"),
        ("t/_icedb/quarantine/id.strange", "ndjson"),
    ],
)
def test_a_key_shows_the_format(key, staging_format):
    assert format_of_key(key) == staging_format


@pytest.mark.parametrize("pack", [lambda body: body, gzip.compress, zstd.compress])
def test_the_first_lines_of_text(pack):
    body = pack(b'{"a":"\xc3\xa9"}\n{"b":2}\n' + b'{"c":3}\n' * 100_000)
    assert preview_lines(body, "ndjson", limit=2) == ('{"a":"é"}', '{"b":2}')
    # What was cut off by the preview's own bound is not shown as a line.
    assert preview_lines(body, "ndjson", limit=10**9)[-1] == '{"c":3}'
    assert preview_lines(body, "ndjson", limit=0) == ()


def test_what_cannot_be_read_is_no_error():
    assert preview_lines(b"\xff\x1b[31m", "ndjson", limit=5) == ("\ufffd\ufffd[31m",)
    assert "cannot be decompressed" in preview_lines(b"\x1f\x8bgarbage", "ndjson.gz", limit=5)[0]
    assert "12 bytes of parquet: not readable" in preview_lines(b"PAR1 garbage", "parquet", limit=5)[0]
    assert "bytes of arrow" in preview_lines(b"ARROW1 garbage", "arrow", limit=5)[0]
    assert preview_lines(b"", "ndjson", limit=5) == ()


def test_a_bomb_and_a_long_line_stay_short():
    bomb = zstd.compress(b"x" * 100_000_000)
    (line,) = preview_lines(bomb, "ndjson.zst", limit=5)
    assert len(line) < 600 < PREVIEW_BYTES


def test_rows_of_columns_are_shown_as_rows():
    table = pa.table({"a": [1, 2, 3]})
    parquet, stream, file = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    for sink, open_writer in ((stream, ipc.new_stream), (file, ipc.new_file)):
        with open_writer(sink, table.schema) as writer:
            writer.write_table(table)
    for sink, staging_format in ((parquet, "parquet"), (stream, "arrow"), (file, "arrow")):
        assert preview_lines(sink.getvalue(), staging_format, limit=2) == ("{'a': 1}", "{'a': 2}")
