"""``on_bad_rows = quarantine_rows``: a batch is taken without its bad rows, which lie in quarantine as they came."""

import gzip
import json

import pyarrow as pa
import pytest
from icedb_log.ingest.quarantine import list_bad_rows
from icedb_parts.limits import FlushUnitLimits

GOOD = b'{"ts":"2023-06-07T10:00:00Z","n":1}'
BAD_LINES = [
    b'{"ts":',
    b"[1]",
    b'{"ts":"2023-06-07T10:00:00Z","n":1,"n":2}',
    b'{"ts":"\xff"}',
    b'{"ts":"2023-06-07T10:00:00Z","n":"one"}',
    b'{"ts":"2023-06-07T10:00:00Z","n":9223372036854775808}',
    b'{"ts":"2023-06-07T10:00:00Z","f":9007199254740993}',
    b'{"ts":"2023-06-07T10:00:00Z","f":1e999}',
    b'{"ts":"soon"}',
    b'{"n":1}',
    b'{"ts":null,"n":1}',
    b'{"ts":"2023-06-07T10:00:00Z","d":1}',
    b'{"ts":"2023-06-07T10:00:00Z","":1}',
    b'{"ts":"2023-06-07T10:00:00Z","N":1}',
    b'{"ts":"2023-06-07T10:00:00Z","user":"' + b"u" * 200 + b'"}',
    b'{"ts":"2023-06-07T10:00:00Z","user":"' + b"u" * 2000 + b'"}',
]
SCHEMA = {"n": "BIGINT", "f": "DOUBLE"}


def read_bad_rows(table, batch) -> bytes:
    (key,) = list_bad_rows(table.store, table.paths, batch.batch_id)
    return pa.input_stream(pa.BufferReader(table.store.get(key).body), compression="zstd").read()


@pytest.fixture
def splitting(make_table):
    return make_table("d=day(ts)", on_bad_rows="quarantine_rows", limits=FlushUnitLimits(line_bytes=1024))


@pytest.mark.parametrize("bad", BAD_LINES)
def test_each_bad_row_is_set_aside_as_it_came(splitting, make_table, bad):
    table = make_table("d=day(ts)", "user", on_bad_rows="quarantine_rows") if b"user" in bad else splitting
    if b"user" in bad:
        table.limits = splitting.limits
    good = GOOD if b"user" not in bad else GOOD.replace(b"{", b'{"user":"u",')
    batch = table.stage(body=b"\n".join([good, b"", bad, good, bad + b"\r", good]))
    result = table.flush(batch, schema=SCHEMA)
    assert (result.accepted, result.rejected, result.row_count) == ((batch.batch_id,), (), 3)
    (left_out,) = result.bad_rows
    assert (left_out.batch_id, left_out.row_count) == (batch.batch_id, 2)
    assert "line 3" in left_out.reason
    assert (left_out.payload_key,) == list_bad_rows(table.store, table.paths, batch.batch_id)
    assert read_bad_rows(table, batch) == bad + b"\n" + bad + b"\n"
    assert len(table.rows(*result.files)) == 3


def test_rows_that_are_bad_in_many_ways_are_all_set_aside(splitting):
    lines = [line for line in BAD_LINES if b"user" not in line or len(line) > 1024]
    batch = splitting.stage(body=gzip.compress(b"\n".join([*lines, GOOD])), staging_format="ndjson.gz")
    other = splitting.stage(body=GOOD)
    result = splitting.flush(batch, other, schema=SCHEMA)
    assert result.accepted == (batch.batch_id, other.batch_id)
    assert result.bad_rows[0].row_count == len(lines)
    assert "line 1 is not a JSON object" in result.bad_rows[0].reason, "the reason of the first row"
    assert read_bad_rows(splitting, batch) == b"\n".join(lines) + b"\n"
    assert result.row_count == 2


def test_a_batch_of_only_bad_rows_is_rejected_whole(splitting):
    malformed, long = splitting.stage(body=b"1\n2\n"), splitting.stage(body=b'{"a":"' + b"x" * 2000 + b'"}')
    good = splitting.stage(body=GOOD)
    result = splitting.flush(malformed, long, good)
    assert (result.accepted, result.bad_rows) == ((good.batch_id,), ())
    assert "line 1 is not a JSON object" in result.rejected[0].reason
    assert "line 1 has 2008 bytes; the limit is 1024" in result.rejected[1].reason


def test_what_is_wrong_with_a_batch_as_a_whole_rejects_it(splitting):
    batch = splitting.stage(body=GOOD[:-1], staging_format="ndjson.gz")
    assert "not a complete gzip stream" in splitting.reason(batch)


def test_in_a_new_column_of_no_one_type_the_first_value_is_right(make_table):
    table = make_table(on_bad_rows="quarantine_rows")
    batch = table.stage({"x": None}, {"x": "a"}, {"x": 1}, {"x": [1]}, {"x": True})
    result = table.flush(batch)
    assert [row["x"] for row in table.rows(*result.files)] == [None, "a", "[1]"]
    assert read_bad_rows(table, batch) == b'{"x": 1}\n{"x": true}\n'
    assert "line 3" in result.bad_rows[0].reason
    numbers = table.flush(table.stage({"y": 1}, {"y": 0.5}, {"y": "a"}))
    assert [row["y"] for row in table.rows(*numbers.files)] == [1.0, 0.5]


def test_bad_rows_of_other_formats_are_objects(make_table):
    table = make_table("d=day(ts)", on_bad_rows="quarantine_rows")
    csv = table.stage(body=b"ts,n\n2023-06-07,1\nsoon,2\n2023-06-07,3,4\n,5\n", staging_format="csv")
    document = table.stage(body=b'[{"ts":0,"n":1},{"n":2},3]', staging_format="json")
    result = table.flush(csv, document)
    assert result.row_count == 2
    assert [(bad.row_count, bad.reason.partition(":")[0]) for bad in result.bad_rows] == [
        (3, "column 'ts' is TIMESTAMP, and a value of this batch is none (row 3"),
        (2, "element 2"),
    ]
    assert read_bad_rows(table, csv).splitlines() == [
        b'{"ts":"soon","n":"2"}',
        b"2023-06-07,3,4",
        b'{"ts":null,"n":"5"}',
    ]
    assert [json.loads(line) for line in read_bad_rows(table, document).splitlines()] == [{"n": 2}, 3]


def test_under_strict_a_row_with_an_unknown_column_is_bad(make_table):
    table = make_table(evolution="strict", on_bad_rows="quarantine_rows", declared={"n": "BIGINT"})
    batch = table.stage({"n": 1}, {"n": 2, "extra": None})
    result = table.flush(batch)
    assert result.row_count == 1
    assert "line 2: column 'extra' is not in the schema of table events" in result.bad_rows[0].reason
    assert "line 1: column 'm' is not in the schema" in table.reason(table.stage({"m": 1}), table.stage({"n": 1}))
