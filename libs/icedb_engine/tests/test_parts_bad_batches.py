"""Each way in which a batch can be bad has one clear reason, and never touches the batch beside it (I5)."""

import gzip
import json

import pyarrow as pa
import pytest
from icedb_engine.limits import FlushUnitLimits

GOOD = {"ts": "2023-06-07T10:00:00Z", "event": "click", "n": 1}
KNOWN = {"event": "VARCHAR", "n": "BIGINT", "price": "DOUBLE", "ok": "BOOLEAN"}


def ndjson(*rows) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def with_value(**values):
    return ndjson(GOOD, {**GOOD, **values})


BAD_BODIES = [
    (b'{"ts": 1}\n{"ts": \n', "line 2 is not a JSON object (Malformed JSON"),
    (ndjson(GOOD) + b"[1]\n", "line 2 is not a JSON object (it is a JSON array)"),
    (b"\n\r\n" + ndjson(GOOD) + b"17\n", "line 4 is not a JSON object (it is a JSON ubigint)"),
    (b'{"a":1} {"a":2}\n', "line 1 is not a JSON object"),
    (ndjson(GOOD) + b'{"event":"\xff"}\n', "line 2 is not UTF-8: byte 0xff at offset"),
    (
        with_value(n="x"),
        "column 'n' is BIGINT (by the table's schema or an earlier batch), this batch has string values",
    ),
    (with_value(n="x"), '(line 2: "x")'),
    (with_value(n=1.5), "number with a fraction values; send values that fit BIGINT"),
    (with_value(n=2**63), "integer beyond 64 bits values; BIGINT ends at 2^63 - 1"),
    (with_value(price=2**53 + 1), "a DOUBLE would lose digits"),
    (with_value(price="1.5"), "column 'price' is DOUBLE"),
    (with_value(ok=1), "column 'ok' is BOOLEAN"),
    (with_value(event=5), "column 'event' is VARCHAR"),
    (
        with_value(fresh=1) + with_value(fresh="a"),
        "column 'fresh' is new, and no one type takes its string and integer",
    ),
    (with_value(fresh=0.5) + with_value(fresh=2**60), "without losing digits: send such numbers as strings"),
    (with_value(ts="yesterday"), "column 'ts' is TIMESTAMP, and a value of this batch is none (line 2: \"yesterday\")"),
    (with_value(ts="x" * 200), "x" * 79 + "…)"),
    (
        with_value(ts=True),
        "column 'ts' is TIMESTAMP (by the table's schema or an earlier batch), this batch has boolean",
    ),
    (with_value(ts=10**17), "integer unix milliseconds, of the years 1 to 9999"),
    (with_value(price=1.0).replace(b"1.0", b"1e999"), "send numbers in the range of a 64-bit float"),
    (with_value(ts=None), "line 2: column 'ts' is missing or null, and partition d=day(ts) of table events needs it"),
    (ndjson({"event": "click"}), "line 1: column 'ts' is missing or null"),
    (ndjson({"event": "click"}), "send it with every event; this batch has the column 'event'"),
    (ndjson({"event": "a", "tss": 0}), "this batch has the columns 'event', 'tss'; did you mean tss?"),
    (ndjson({f"k{n}": 1 for n in range(12)}), "'k6', 'k7' and 2 more"),
    (ndjson({"events": [GOOD]}), "this batch has the column 'events'"),
    (with_value(Event="x"), "columns 'event' and 'Event' differ only in case"),
    (with_value(a=1, A=1), "columns 'A' and 'a' differ only in case"),
    (ndjson(GOOD).replace(b'"n"', b'"event"'), "an event has the same key twice"),
    (with_value(d="2023"), "column 'd' is named like the partition d=day(ts)"),
    (with_value(D="2023"), "column 'D' is named like the partition d=day(ts)"),
    (with_value(**{"": 1}), "column name '': use 1 to 255 bytes"),
    (with_value(**{"a\tb": 1}), "column name 'a\\tb': use 1 to 255 bytes of printable"),
    (with_value(**{"é" * 128: 1}), "use 1 to 255 bytes of printable characters"),
]


@pytest.mark.parametrize(("body", "expected"), BAD_BODIES)
def test_a_bad_batch_is_rejected_with_its_reason_and_the_others_are_taken(make_table, body, expected):
    table = make_table("d=day(ts)")
    before, bad, after = table.stage(GOOD), table.stage(body=body), table.stage(GOOD, GOOD)
    result = table.flush(before, bad, after, schema=KNOWN)
    assert [*result.rejected] == [bad.batch_id]
    assert expected in next(iter(result.rejected.values()))
    assert result.accepted == (before.batch_id, after.batch_id)
    assert result.row_count == len(table.rows(*result.files)) == 3


@pytest.mark.parametrize(
    ("body", "staging_format", "expected"),
    [
        (gzip.compress(ndjson(GOOD))[:-9], "ndjson.gz", "not a complete gzip stream"),
        (pa.compress(ndjson(GOOD), codec="zstd", asbytes=True)[:-5], "ndjson.zst", "not a complete zstd stream"),
        (ndjson(GOOD), "ndjson.gz", "not a complete gzip stream"),
        (ndjson(GOOD), "ndjson.zst", "not a complete zstd stream"),
        (gzip.compress(b" " * 5000), "ndjson.gz", "more than 4096 bytes after decompression; send smaller batches"),
        (ndjson({"event": "x" * 3000}), "ndjson", "the staged object has"),
        (ndjson(GOOD, {"event": "x" * 1500}), "ndjson", "line 2 has 1514 bytes; the limit is 1024"),
        (ndjson({f"k{i}": 1 for i in range(21)}), "ndjson", "21 different top-level keys; the limit is 20"),
        (ndjson({f"k{i}": 1 for i in range(19)}), "ndjson", "the table would have 24 columns; the limit is 22"),
    ],
)
def test_what_is_above_a_bound_or_damaged_is_rejected(make_table, body, staging_format, expected):
    limits = FlushUnitLimits(
        batch_staged_bytes=2048, batch_decoded_bytes=4096, line_bytes=1024, batch_columns=20, table_columns=22
    )
    table = make_table(limits=limits)
    good = table.stage(GOOD)
    result = table.flush(good, table.stage(body=body, staging_format=staging_format), schema=KNOWN)
    assert result.accepted == (good.batch_id,)
    assert expected in next(iter(result.rejected.values()))


@pytest.mark.parametrize(
    ("declared", "value", "is_taken"),
    [
        ("VARCHAR", 5, False),
        ("VARCHAR", {"a": 1}, True),
        ("VARCHAR", True, False),
        ("BIGINT", "5", False),
        ("BIGINT", 5.0, False),
        ("DOUBLE", "5", False),
        ("DOUBLE", 5, True),
        ("BOOLEAN", "true", False),
        ("DATE", "2023-06-07", True),
        ("DATE", "2023-06-31", False),
        ("DATE", "2023-06-07T00:00:00Z", False),
        ("DATE", 20230607, False),
        ("TIMESTAMP", "2023-06-07 25:00", False),
        ("TIMESTAMP", "infinity", False),
        ("TIMESTAMP", "1686132000000", False),
        ("TIMESTAMP", 1.5, False),
        ("TIMESTAMP", {}, False),
        ("TIMESTAMP", "0000-01-01", False),
    ],
)
def test_a_declared_type_takes_only_what_it_says(make_table, declared, value, is_taken):
    table = make_table(declared={"x": declared})
    result = table.flush(table.stage({"x": value}))
    assert len(result.accepted) == is_taken
    assert is_taken or "column 'x' is" in next(iter(result.rejected.values()))


def test_a_partition_source_needs_a_type_that_makes_a_partition(make_table):
    table = make_table("price")
    assert "cannot take a column of type DOUBLE" in table.reason(table.stage({"price": 1.5}))
    mixed = table.flush(table.stage({"price": 1}), table.stage({"price": 1.5}))
    assert len(mixed.accepted) == 1, "the fraction must not turn the column of the first batch into a DOUBLE"


def test_a_partition_value_that_is_too_long_for_a_key_is_rejected(make_table):
    table = make_table("user")
    reason = table.reason(table.stage({"user": "a"}, {"user": "é" * 40}), table.stage({"user": "b" * 190}))
    assert "partition user: value 'éé" in reason
    assert "has 240 bytes in a key; the limit is 190" in reason
    assert "use truncate[n] or bucket[n]" in reason


def test_values_that_are_too_long_for_a_key_together_are_rejected(make_table):
    fields = [f"p{i}" for i in range(6)]
    table = make_table(*fields)
    assert "and 9" in table.reason(table.stage(dict.fromkeys(fields, "x" * 180)))


def test_a_batch_without_any_value_has_no_columns_unless_the_table_has(make_table):
    table = make_table()
    assert "no event has a value that is not null" in table.reason(table.stage({}, {"a": None}))
    result = table.flush(table.stage({}, {"a": None}), schema={"n": "BIGINT"})
    assert table.rows(*result.files) == [{"n": None}, {"n": None}]


def test_a_batch_whose_object_is_gone_is_missing(make_table):
    table = make_table()
    gone, there = table.stage({"n": 1}), table.stage({"n": 2})
    table.store.delete([gone.key])
    result = table.flush(gone, there)
    assert (result.missing, result.accepted) == ((gone.batch_id,), (there.batch_id,))


def test_what_a_unit_cannot_hold_is_left(make_table):
    table = make_table(limits=FlushUnitLimits(unit_decoded_bytes=10))
    first, second = table.stage({"n": 1}, {"n": 2}), table.stage({"n": 3})
    result = table.flush(first, second)
    assert (result.accepted, result.left) == ((first.batch_id,), (second.batch_id,))


@pytest.mark.parametrize(
    ("body", "columns"),
    [
        (b"2023-06-07T10:00:00Z,click\n2023-06-07T11:00:00Z,view\n", "'2023-06-07T10:00:00Z', 'click'"),
        (b"time,event\n2023-06-07T10:00:00Z,click\n", "'event', 'time'"),
    ],
    ids=["no header", "another name"],
)
def test_a_csv_file_without_the_column_of_its_partition_is_told_with_the_columns_that_it_has(make_table, body, columns):
    table = make_table("d=day(ts)")
    reason = table.reason(table.stage(body=body, staging_format="csv"))
    assert reason.startswith("row 2: column 'ts' is missing or null, and partition d=day(ts)")
    assert columns in reason


def test_the_columns_of_a_batch_are_not_told_where_some_of_its_rows_have_the_right_one(make_table):
    table = make_table("d=day(ts)")
    assert table.reason(table.stage(GOOD, {"event": "click"})).endswith("send it with every event")
