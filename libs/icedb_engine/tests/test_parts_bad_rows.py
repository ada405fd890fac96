"""``on_bad_rows = quarantine_rows``: a batch is taken without its bad rows, which lie in quarantine as they came."""

import gzip
import json

import pyarrow as pa
import pytest
from icedb_engine.limits import FlushUnitLimits
from icedb_log.ingest.quarantine import list_bad_rows

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
    (key,) = list_bad_rows(table, batch.batch_id)
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
    assert (result.accepted, result.rejected, result.row_count) == ((batch.batch_id,), {}, 3)
    (left_out,) = result.bad_rows
    assert (left_out.batch.batch_id, left_out.row_count) == (batch.batch_id, 2)
    assert "line 3" in left_out.reason
    assert (left_out.payload_key,) == list_bad_rows(table, batch.batch_id)
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
    assert "line 1 is not a JSON object" in next(iter(result.rejected.values()))
    assert "line 1 has 2008 bytes; the limit is 1024" in [*result.rejected.values()][1]


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


def test_a_row_that_no_wider_column_takes_does_not_keep_the_column_narrow(make_table):
    """One fraction and one text: the text is set aside, and the fraction makes the column wider."""
    table = make_table(evolution="widen", on_bad_rows="quarantine_rows")
    for rows in ([{"n": 1}, {"n": 0.5}, {"n": "text"}], [{"n": 1}, {"n": 0.5, "s": "s"}, {"n": 2, "s": 3}]):
        batch = table.stage(*rows)
        schema = {"n": "BIGINT", "s": "VARCHAR"}
        assert table.flush(batch, schema=schema).wishes == {"n": "DOUBLE"}
        granted = table.flush(batch, schema={**schema, "n": "DOUBLE"})
        assert sorted(row["n"] for row in table.rows(*granted.files)) == [0.5, 1.0]
        assert [(bad.row_count, "line 3" in bad.reason) for bad in granted.bad_rows] == [(1, True)]


def test_each_of_the_first_bad_rows_has_its_own_reason(splitting):
    bad = [
        b'{"ts":',
        b"[1]",
        b'{"ts":"2023-06-07T10:00:00Z","n":1,"n":2}',
        b'{"ts":"2023-06-07T10:00:00Z","n":"one"}',
        b'{"ts":"soon"}',
        b'{"ts":"later"}',
        b'{"n":1}',
        b'{"ts":"2023-06-07T10:00:00Z","":1}',
        b'{"ts":"2023-06-07T10:00:00Z","N":1}',
    ]
    batch = splitting.stage(body=b"\n".join([GOOD, *bad]))
    (left_out,) = splitting.flush(batch, schema=SCHEMA).bad_rows
    lines = left_out.reason.split("\n")
    assert len(lines) == len(bad) == 9
    for number, (line, words) in enumerate(
        zip(
            lines,
            (
                "is not a JSON object (",
                "it is a JSON array",
                "the same key twice",
                "column 'n' is BIGINT",
                "soon",
                "later",
                "column 'ts' is missing or null",
                "column name ''",
                "columns 'n' and 'N' differ only in case",
            ),
            strict=True,
        ),
        2,
    ):
        assert f"line {number}" in line
        assert words in line
    assert [row for fault in left_out.faults for row in fault.rows] != []
    assert sorted(row for fault in left_out.faults for row in fault.rows) == list(range(2, 11))


def test_bad_rows_beyond_the_first_are_counted_by_reason(splitting):
    rows = [b'{"ts":"soon"}', b'{"n":1}'] * 10 + [b'{"ts":"2023-06-07T10:00:00Z","n":"one"}'] * 5
    (left_out,) = splitting.flush(splitting.stage(body=b"\n".join([GOOD, *rows])), schema=SCHEMA).bad_rows
    first, rest = left_out.reason.split("\n")[:10], left_out.reason.split("\n")[10:]
    assert [f"line {number}" in line for number, line in enumerate(first, 2)] == [True] * 10
    assert rest[0] == "and 15 more rows:"
    assert [line.partition(" ")[0] for line in rest[1:]] == ["5", "5", "5"]
    assert {
        words for words in ("'ts' is TIMESTAMP", "'ts' is missing", "'n' is BIGINT") for line in rest if words in line
    } == {
        "'ts' is TIMESTAMP",
        "'ts' is missing",
        "'n' is BIGINT",
    }


def test_a_batch_that_is_refused_whole_names_all_that_is_wrong_with_it(make_table):
    table = make_table("d=day(ts)", on_bad_rows="quarantine_batch", limits=FlushUnitLimits(line_bytes=1024))
    lines = [line for line in BAD_LINES if b"user" not in line or len(line) > 1024]
    good, torn = table.stage(body=GOOD), table.stage(body=b"\n".join([*lines, GOOD]))
    mended = table.stage(body=b"\n".join([GOOD, *(line for line in lines if b"\xff" not in line and len(line) < 1024)]))
    result = table.flush(good, torn, mended, schema=SCHEMA)
    assert (result.accepted, result.bad_rows, result.row_count) == ((good.batch_id,), (), 1)
    for rejected, count, first in zip(result.rejected.values(), (len(lines), len(lines) - 2), (1, 2), strict=True):
        reason = rejected.split("\n")
        assert [f"line {number}" in line for number, line in enumerate(reason[:10], first)] == [True] * 10
        assert reason[10] == f"and {count - 10} more rows:"


def test_a_refusal_says_the_way_out(make_table):
    fraction = {"n": 0.5}
    known = {"n": "BIGINT"}
    for config, command in (
        ({"evolution": "add_columns"}, "`icedb table alter events --evolution widen`"),
        ({"declared": {"n": "BIGINT"}}, "`icedb table alter events --evolution widen --column n:DOUBLE`"),
        ({"evolution": "widen", "declared": {"n": "BIGINT"}}, "`icedb table alter events --column n:DOUBLE`"),
    ):
        table = make_table(**config)
        reason = table.reason(table.stage(fraction), schema=known)
        assert reason.endswith(f"To have it as DOUBLE: {command}, then `icedb quarantine retry events --all`")
    laid_out = make_table(sort=("n",), evolution="add_columns")
    assert "icedb table alter" not in laid_out.reason(laid_out.stage(fraction), schema=known)
    text = make_table()
    assert "icedb table alter" not in text.reason(text.stage({"n": "text"}), schema=known)
