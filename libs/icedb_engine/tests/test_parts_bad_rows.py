"""``on_bad_rows = quarantine_rows``: a batch is taken without its bad rows, which lie in quarantine as they came."""

import csv
import gzip
import io
import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from icedb_engine.limits import FlushUnitLimits
from icedb_log.ingest.quarantine import list_payloads

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
    (key,) = list_payloads(table, batch.batch_id)
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
    assert (left_out.payload_key,) == list_payloads(table, batch.batch_id)
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


def test_bad_rows_of_other_formats_are_kept_in_their_format(make_table):
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
        b"ts,n",
        b"soon,2",
        b"2023-06-07,3,4",
        b",5",
    ]
    assert [json.loads(line) for line in read_bad_rows(table, document).splitlines()] == [{"n": 2}, 3]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
CELLS = TEXTS | st.sampled_from(
    ["1", "1.50", "true", "", "007", "1e3", 'a,"b"', "x\ny", "x\r\ny", " ", "null", "19.99"]
)
NUMBERS = st.floats(-1e15, 1e15).filter(lambda value: not value.is_integer()) | st.just(math.nan)
INNER = st.none() | st.booleans() | st.integers(0, 9) | TEXTS
JSON = {
    "a": st.none() | TEXTS | st.lists(INNER, max_size=2) | st.dictionaries(TEXTS, INNER, max_size=2),
    "i": st.none() | st.integers(-(2**63), 2**63 - 1),
    "f": st.none() | NUMBERS,
    "b": st.none() | st.booleans(),
}
DAYS = st.dates()
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
COLUMNS = {
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "u": (pa.uint64(), st.integers(0, 2**63 - 1)),
    "f": (pa.float64(), st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])),
    "half": (pa.float32(), st.floats(width=32)),
    "b": (pa.bool_(), st.booleans()),
    "s": (pa.string(), TEXTS),
    "price": (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    "whole": (pa.decimal128(5, 0), st.integers(-99999, 99999).map(Decimal)),
    "day": (pa.date32(), DAYS),
    "at": (pa.timestamp("us"), MOMENTS),
    "zoned": (pa.timestamp("ms", "+05:30"), MOMENTS.map(lambda at: at.replace(microsecond=0, tzinfo=UTC))),
    "nested": (pa.struct([("x", pa.list_(pa.int64()))]), st.builds(dict, x=st.none() | st.lists(st.integers(0, 9)))),
    "map": (pa.map_(pa.string(), pa.int64()), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)).map(lambda m: [*m.items()])),
    "code": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "none": (pa.null(), st.none()),
}  # fmt: skip


def _make_body(data, staging_format, count):
    """Return a batch in which ``fault`` is no time in every second row."""
    faults = [f"x{place}" if place % 2 else f"2023-06-07T10:00:0{place}Z" for place in range(count)]
    if staging_format == "csv":
        sink = io.StringIO()
        rows = [[fault, data.draw(CELLS), data.draw(CELLS)] for fault in faults]
        csv.writer(sink).writerows([["fault", "a", "b"], *rows])
        return sink.getvalue().encode()
    if staging_format in ("ndjson", "json"):
        rows = [{"fault": fault, **{name: data.draw(values) for name, values in JSON.items()}} for fault in faults]
        lines = [json.dumps(row) for row in rows]
        return (f"[{','.join(lines)}]" if staging_format == "json" else "\n".join(lines)).encode()
    columns = {
        name: pa.array(data.draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
        for name, (kind, values) in COLUMNS.items()
    }
    table = pa.table({"fault": faults, **columns})
    sink = io.BytesIO()
    if staging_format == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _read_by_fault(table, result):
    """Return rows by their fault, as text: NaN is not equal to itself. A file lacks columns that are all null."""
    rows = table.rows(*result.files)
    return {
        row["fault"]: repr(sorted((name, value) for name, value in row.items() if value is not None)) for row in rows
    }


@pytest.mark.parametrize("staging_format", ["ndjson", "json", "csv", "parquet", "arrow"])
@settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_row_that_is_tried_again_is_what_it_would_have_been(make_table, staging_format, data):
    """The rows of a batch are bad for a column's type; it is corrected, and the retry takes them as if it had been so."""
    body = _make_body(data, staging_format, data.draw(st.integers(2, 6)))
    schema = {"a": "VARCHAR", "b": "VARCHAR"} if staging_format == "csv" else {}
    options = {"evolution": "widen", "on_bad_rows": "quarantine_rows"}
    right = make_table(declared={"fault": "VARCHAR"}, **options)
    whole = right.flush(right.stage(body=body, staging_format=staging_format), schema=schema)
    assert not whole.rejected and not whole.bad_rows, whole
    expected = _read_by_fault(right, whole)
    wrong = make_table(declared={"fault": "TIMESTAMP"}, **options)
    (bad,) = wrong.flush(wrong.stage(body=body, staging_format=staging_format), schema=schema).bad_rows
    payload, bad_format = (
        wrong.store.get(bad.payload_key).body,
        bad.payload_key.partition(".rows-")[2].partition(".")[2],
    )
    again = right.flush(right.stage(body=payload, staging_format=bad_format), schema=dict(whole.columns))
    assert not again.rejected and not again.bad_rows, again
    found = _read_by_fault(right, again)
    assert found == {fault: row for fault, row in expected.items() if fault.startswith("x")}
    if staging_format in ("parquet", "arrow"):  # the types, too, are those that came
        columns = right.flush(right.stage(body=payload, staging_format=bad_format)).columns
        assert columns.items() <= whole.columns.items()


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
        assert table.flush(batch, schema=schema).widening_requests == {"n": "DOUBLE"}
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
        ({"evolution": "add_columns"}, "`icedb table alter events --set evolution=widen`"),
        ({"declared": {"n": "BIGINT"}}, "`icedb table alter events --set evolution=widen --column n:DOUBLE`"),
        ({"evolution": "widen", "declared": {"n": "BIGINT"}}, "`icedb table alter events --column n:DOUBLE`"),
    ):
        table = make_table(**config)
        reason = table.reason(table.stage(fraction), schema=known)
        assert reason.endswith(f"To have it as DOUBLE: {command}, then `icedb quarantine retry events --all`")
    laid_out = make_table(sort=("n",), evolution="add_columns")
    assert "icedb table alter" not in laid_out.reason(laid_out.stage(fraction), schema=known)
    text = make_table()
    assert "icedb table alter" not in text.reason(text.stage({"n": "text"}), schema=known)


def test_a_line_that_a_door_has_set_aside_is_refused_with_its_reason(splitting):
    """Webhooks: an event that is none is staged as its reason and its text."""
    body = b'["event 2 has neither userId nor anonymousId",{"type":"track","n":123456789012345678901234567890}]\n'
    batch = splitting.stage(body=body)
    reason = splitting.flush(batch).rejected[batch.batch_id]
    assert reason == (
        "line 1 is not a JSON object (it is a JSON array of 'event 2 has neither userId nor anonymousId', …); "
        "send one JSON object per line"
    )
