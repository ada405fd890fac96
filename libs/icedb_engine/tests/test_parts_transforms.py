"""Partition transforms: the SQL means what the plain Python says, for every value."""

import math
from datetime import date, datetime

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from icedb_log.table.table_config import TRANSFORMS, WIDTH_TRANSFORMS, PartitionField
from icedb_log.table.transforms import (
    canonical_text,
    find_type_problem,
    read_bound,
    read_time_span,
    transform_sql,
    transform_value,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
VALUES = {
    "VARCHAR": TEXT,
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "BOOLEAN": st.booleans(),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(),
    "DOUBLE": st.floats(width=64),
}
CASES = [
    (transform, sql_type)
    for transform in TRANSFORMS
    for sql_type in VALUES
    if find_type_problem(
        PartitionField.parse(f"p={transform}{'[3]' if transform in WIDTH_TRANSFORMS else ''}(x)"), sql_type
    )
    is None
]


@pytest.fixture(scope="module")
def engine():
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@pytest.mark.parametrize(("transform", "sql_type"), CASES)
def test_sql_and_python_agree(engine, transform, sql_type):
    @given(value=VALUES[sql_type], width=st.integers(1, 1_000_000))
    @settings(max_examples=40, deadline=None)
    def check(value, width):
        field = PartitionField(
            name="p", transform=transform, column="x", width=width if transform in WIDTH_TRANSFORMS else None
        )
        query = f"SELECT {transform_sql(field, f'CAST($1 AS {sql_type})', sql_type)}"
        ((text,),) = engine.execute(query, [value]).fetchall()
        assert text == transform_value(field, value)

    check()


@pytest.mark.parametrize("value", [math.nan, -math.nan])
def test_the_sign_of_nan_is_in_its_bucket(engine, value):
    field = PartitionField.parse("p=bucket[1000](x)")
    query = f"SELECT {transform_sql(field, 'CAST($1 AS DOUBLE)', 'DOUBLE')}"
    assert engine.execute(query, [value]).fetchone() == (transform_value(field, value),)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("p=year(x)", datetime(2023, 6, 7, 13), "2023"),
        ("p=month(x)", datetime(2023, 6, 7, 13), "2023-06"),
        ("p=day(x)", datetime(2023, 6, 7, 13), "2023-06-07"),
        ("p=hour(x)", datetime(2023, 6, 7, 13), "2023-06-07-13"),
        ("p=hour(x)", date(2023, 6, 7), "2023-06-07-00"),
        ("p=day(x)", date(42, 1, 2), "0042-01-02"),
        ("p=bucket[16](x)", "user-1", "3"),
        ("p=bucket[16](x)", 1, "8"),
        ("p=truncate[2](x)", "Ärger", "Är"),
        ("p=truncate[10](x)", -1, "-10"),
        ("p=truncate[10](x)", 19, "10"),
        ("x", True, "true"),
        ("x", datetime(2023, 6, 7), "2023-06-07T00:00:00.000000Z"),
    ],
)
def test_forms_are_fixed(text, value, expected):
    assert transform_value(PartitionField.parse(text), value) == expected


@pytest.mark.parametrize(
    ("text", "sql_type"),
    [("x", "DOUBLE"), ("p=day(x)", "VARCHAR"), ("p=truncate[2](x)", "TIMESTAMP"), ("p=truncate[2](x)", "BOOLEAN")],
)
def test_a_type_without_meaning_is_named(text, sql_type):
    assert f"cannot take a column of type {sql_type}" in find_type_problem(PartitionField.parse(text), sql_type)


@given(st.floats(allow_nan=False))
@example(1e16)
@example(-0.0)
def test_the_canonical_text_of_a_double_reads_back(value):
    assert float(canonical_text(value)) == value


DAYS = np.concatenate(
    [
        np.arange(np.datetime64(first), np.datetime64(end))
        for first, end in (("1582-10-15", "2400-03-02"), ("9999-01-01", "10000-01-01"))
    ]
)
"""The calendar begins again after 400 years: twice all of them, and the last one."""


@pytest.mark.parametrize(("transform", "unit"), [("year", "Y"), ("month", "M"), ("day", "D")])
def test_time_partitions_of_each_day_are_those_of_the_calendar(transform, unit):
    """Leap years and centuries: the engine and numpy, whose calendar is Python's, agree on each of its days."""
    field = PartitionField.parse(f"p={transform}(x)")
    with duckdb.connect(config={"threads": 1}) as engine:
        engine.register("days", pa.table({"x": pa.array(DAYS)}))
        found = engine.execute(f"SELECT {transform_sql(field, 'x', 'DATE')} AS p FROM days").to_arrow_table()
    expected = pa.chunked_array([pa.array(np.datetime_as_string(DAYS, unit=unit))])
    assert found["p"].equals(expected)


@pytest.mark.parametrize(
    ("transform", "unit", "first"), [("year", "Y", "0001"), ("month", "M", "0001-01"), ("day", "D", "1582-10-15")]
)
def test_a_time_partition_ends_where_the_next_one_begins(transform, unit, first):
    starts = np.arange(np.datetime64(first, unit), np.datetime64("9999-12-31", unit) + 1)
    starts = starts[:: 97 if transform == "day" else 1]
    for start, text in zip(starts.tolist(), np.datetime_as_string(starts).tolist(), strict=True):
        begin, length = read_time_span(transform, text)
        assert begin == datetime(start.year, start.month, start.day)
        following = np.datetime64(text, unit) + 1
        assert np.datetime64(begin) + np.timedelta64(length.days, "D") == following


@pytest.mark.parametrize(
    ("bound", "sql_type"),
    [
        (True, "BIGINT"),
        (1, "BOOLEAN"),
        (1.0, "BIGINT"),
        (1, "DOUBLE"),
        ("1", "BIGINT"),
        (1, "VARCHAR"),
        (None, "BIGINT"),
    ],
)
def test_a_bound_of_another_type_says_nothing(bound, sql_type):
    assert read_bound(bound, sql_type) is None


def test_a_moment_is_no_day_and_a_day_is_no_moment():
    assert read_bound("2023-06-07", "DATE") == date(2023, 6, 7)
    assert read_bound("2023-06-07T13:00:00.000001Z", "TIMESTAMP") == datetime(2023, 6, 7, 13, 0, 0, 1)
    assert read_bound("2023-06-07T13:00:00Z", "DATE") is None
