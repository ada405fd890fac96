"""Columns that are times: numbers in their unit, partitions of a BIGINT, and times that are taken for a mistake."""

import io
import json
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.imports.import_inspect import FileRefused, inspect_file
from icedb_engine.reading.frame import SAMPLE_LINES
from icedb_engine.units.typed_rows import open_typed_rows
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import InspectJob, SourceFile
from icedb_log.model import FileMarker
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.time_columns import MAX_TIME_MS, MIN_TIME_MS, TICK_US, TIME_UNITS, TimeColumn
from icedb_log.table.transforms import bad_time_sql, transform_sql, transform_value

MS = 1_686_176_939_445
"""2023-06-07T22:28:59.445Z."""
SENT = {"epoch_s": MS // 1000, "epoch_ms": MS, "epoch_us": MS * 1000}
PLAUSIBLE = {"from_ms": 631_152_000_000, "to_ms": 4_102_444_800_000}


def time_table(make_table, sql_type="TIMESTAMP", unit=None, **more):
    times = {"ts": {"unit": unit, **PLAUSIBLE}}
    return make_table("d=day(ts)", declared={"ts": sql_type}, times=times, **more)


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("sql_type", ["TIMESTAMP", "BIGINT"])
@pytest.mark.parametrize("unit", TIME_UNITS)
def test_numbers_are_read_in_their_unit_and_a_bigint_is_stored_as_it_is(make_table, unit, sql_type, is_fast):
    table = time_table(make_table, sql_type, unit)
    count = SAMPLE_LINES + 1 if is_fast else 2
    result = table.flush(table.stage(*[{"ts": SENT[unit] + number % 2} for number in range(count)]))
    assert (result.rejected, result.row_count, result.partitions) == ({}, count, ("d=2023-06-07",))
    found = sorted({row["ts"] for row in table.rows(*result.files)})
    if sql_type == "BIGINT":
        assert found == [SENT[unit], SENT[unit] + 1]
    else:
        micros = SENT[unit] * TICK_US[unit]
        assert found[0].replace(tzinfo=UTC) == datetime.fromtimestamp(micros // 10**6, UTC).replace(
            microsecond=micros % 10**6
        )


def test_csv_and_arrow_numbers_are_read_in_their_unit(make_table):
    table = time_table(make_table, unit="epoch_s")
    sink = io.BytesIO()
    pq.write_table(pa.table({"ts": [SENT["epoch_s"]]}), sink)
    result = table.flush(
        table.stage(body=f"ts\n{SENT['epoch_s']}\n".encode(), staging_format="csv"),
        table.stage(body=sink.getvalue(), staging_format="parquet"),
        table.stage({"ts": "2023-06-07T22:28:59Z"}),
    )
    assert (result.rejected, result.row_count, result.partitions) == ({}, 3, ("d=2023-06-07",))
    assert len({row["ts"] for row in table.rows(*result.files)}) == 1


WRONG = [
    ("TIMESTAMP", None, SENT["epoch_s"], "looks like seconds (2023-06-07T22:28:59Z)"),
    ("TIMESTAMP", None, SENT["epoch_us"], "looks like microseconds (2023-06-07T22:28:59Z)"),
    ("TIMESTAMP", None, MS * 10**6, "looks like nanoseconds (2023-06-07T22:28:59Z)"),
    ("TIMESTAMP", "epoch_s", MS, "looks like milliseconds (2023-06-07T22:28:59Z)"),
    ("BIGINT", "epoch_ms", SENT["epoch_s"], "looks like seconds (2023-06-07T22:28:59Z): send milliseconds"),
    ("BIGINT", "epoch_s", MS, "looks like milliseconds (2023-06-07T22:28:59Z): send seconds"),
    ("BIGINT", "epoch_ms", 2**63 - 1, "milliseconds make no time of the years 1 to 9999 of it"),
    ("BIGINT", "epoch_us", -(2**63), "microseconds make no time of the years 1 to 9999 of it"),
    ("BIGINT", "epoch_ms", -1, "milliseconds are 1969-12-31T23:59:59Z"),
    ("TIMESTAMP", None, "1970-01-01T00:00:00Z", "takes times of 1990 to 2100: correct it"),
    ("DATE", None, "2100-01-01", "takes times of 1990 to 2100: correct it"),
    ("DATE", None, "1989-12-31", "takes times of 1990 to 2100: correct it"),
]


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize(("sql_type", "unit", "bad", "words"), WRONG)
def test_times_outside_the_range_are_bad_rows_whose_reason_names_the_likely_unit(
    make_table, sql_type, unit, bad, words, is_fast
):
    good = "2023-06-07" if sql_type == "DATE" else SENT[unit or "epoch_ms"]
    rows = [{"ts": good}] * (SAMPLE_LINES if is_fast else 1)
    table = time_table(make_table, sql_type, unit)
    whole = table.reason(table.stage(*rows, {"ts": bad}, *rows))
    assert words in whole, whole
    assert f"line {len(rows) + 1}: {json.dumps(bad)}" in whole
    splitting = time_table(make_table, sql_type, unit, on_bad_rows="quarantine_rows")
    result = splitting.flush(splitting.stage(*rows, {"ts": bad}, *rows))
    assert (result.rejected, result.row_count, result.partitions) == ({}, 2 * len(rows), ("d=2023-06-07",))
    (left_out,) = result.bad_rows
    assert (left_out.row_count, left_out.reason) == (1, whole)


def test_the_reason_says_how_a_timestamp_s_unit_is_declared(make_table):
    table = time_table(make_table)
    reason = table.reason(table.stage({"ts": SENT["epoch_s"]}))
    assert "`icedb table alter events --column 'ts:TIMESTAMP(epoch_s)'`" in reason


def test_a_table_without_a_range_keeps_what_it_takes(make_table):
    table = make_table("d=day(ts)")
    result = table.flush(table.stage({"ts": SENT["epoch_s"]}, {"ts": 0}))
    assert (result.rejected, result.partitions) == ({}, ("d=1970-01-01", "d=1970-01-20"))
    bare = make_table("d=day(ts)", declared={"ts": "BIGINT"}, times={"ts": {"unit": "epoch_s"}})
    result = bare.flush(bare.stage({"ts": -1}, {"ts": 0}, {"ts": -62_135_596_800}))
    assert (result.rejected, result.partitions) == ({}, ("d=0001-01-01", "d=1969-12-31", "d=1970-01-01"))


def test_null_and_missing_times_are_bad_as_before(make_table):
    table = time_table(make_table, "BIGINT", "epoch_ms")
    for row in ({"ts": None}, {"n": 1}):
        assert "column 'ts' is missing or null, and partition d=day(ts)" in table.reason(table.stage({"ts": MS}, row))
    loose = make_table(declared={"at": "BIGINT"}, times={"at": {"unit": "epoch_ms", **PLAUSIBLE}})
    result = loose.flush(loose.stage({"at": None, "n": 1}, {"at": MS, "n": 2}, {"n": 3}))
    assert (result.rejected, result.row_count) == ({}, 3)
    assert "looks like seconds" in loose.reason(loose.stage({"at": MS // 1000}))


@pytest.mark.parametrize("transform", TIME_TRANSFORMS)
@pytest.mark.parametrize("unit", TIME_UNITS)
def test_sql_python_and_pruning_agree_about_a_bigint(transform, unit):
    engine = duckdb.connect()
    config = TableConfig.create(
        name="t",
        partition=(PartitionField.parse(f"p={transform}(x)"),),
        declared={"x": "BIGINT"},
        times={"x": {"unit": unit}},
    )
    (field,) = config.partition
    low, high = MIN_TIME_MS * 1000 // TICK_US[unit], ((MAX_TIME_MS + 1) * 1000 - 1) // TICK_US[unit]
    condition = bad_time_sql(config.times["x"], "BIGINT").format("$1::BIGINT")

    @given(value=st.integers(low, high) | st.integers(-(10**7), 10**10) | st.sampled_from([low, high]))
    @settings(max_examples=60, deadline=None)
    def check(value):
        sql = transform_sql(field, "$1::BIGINT", "BIGINT")
        ((text, is_bad),) = engine.execute(f"SELECT {sql}, {condition}", [value]).fetchall()
        assert (text, is_bad) == (transform_value(field, value), False)
        marker = FileMarker(path=f"t/_data/p={text}/x.parquet", size_bytes=1, created_ms=1)
        assert FilePruner(f"x = {value}", config).may_be_true(marker)

    check()
    for value in (low - 1, high + 1):
        ((text, is_bad),) = engine.execute(
            f"SELECT {transform_sql(field, '$1::BIGINT', 'BIGINT')}, {condition}", [value]
        ).fetchall()
        assert (text, is_bad) == (None, True)
        with pytest.raises(ValueError, match="no time"):
            transform_value(field, value)


def test_a_partition_of_a_bigint_excludes_the_numbers_of_other_days():
    config = TableConfig.create(
        name="t",
        partition=(PartitionField.parse("d=day(x)"),),
        declared={"x": "BIGINT"},
        times={"x": {"unit": "epoch_s"}},
    )
    marker = FileMarker(path="t/_data/d=2023-06-07/x.parquet", size_bytes=1, created_ms=1)
    first = 1_686_096_000
    for number, kept in ((first - 1, False), (first, True), (first + 86_399, True), (first + 86_400, False)):
        assert FilePruner(f"x = {number}", config).may_be_true(marker) is kept
    assert not FilePruner(f"x < {first}", config).may_be_true(marker)
    assert FilePruner(f"x <= {first}", config).may_be_true(marker)


def inspect(table, **columns):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    table.store.put("in/x.parquet", sink.getvalue())
    info = table.store.head("in/x.parquet")
    source = SourceFile("mem://", info.key, "mem://x", info.etag, info.size_bytes, info.modified_ms, is_named=True)
    return inspect_file(table.store, source, InspectJob(table.paths, table.config, (), {}, "copy"))


def test_an_import_derives_the_partition_and_refuses_what_is_no_plausible_time(make_table):
    table = time_table(make_table, "BIGINT", "epoch_ms")
    assert inspect(table, ts=[MS, MS + 1]).partition == "d=2023-06-07"
    for bad, words in ((MS // 1000, "looks like seconds"), (2**62, "no time"), (0, "1970-01-01")):
        with pytest.raises(FileRefused, match=words):
            inspect(table, ts=[MS, bad])
    with pytest.raises(FileRefused, match="takes times of 1990 to 2100"):
        inspect(time_table(make_table), ts=pa.array([datetime(1970, 1, 20)], pa.timestamp("us")))


def test_rows_of_a_query_outside_the_range_are_refused(make_table, tmp_path):
    table = time_table(make_table, "BIGINT", "epoch_ms")
    unit = table.write_unit({"ts": "BIGINT"})

    def partitions(*values):
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["c0"])
        with open_typed_rows(unit, [batch], tmp_path) as rows:
            return rows.partitions

    assert partitions(MS) == ("d=2023-06-07",)
    with pytest.raises(InvalidRequest, match=r"the insert_query gives ts = 1686176939: .*looks like seconds"):
        partitions(MS, MS // 1000)


def test_units_and_ranges_belong_to_declared_times():
    def create(times, **fields):
        return TableConfig.create(
            name="t", declared={"a": "BIGINT", "s": "VARCHAR", "t": "TIMESTAMP"}, times=times, **fields
        )

    for times, words in (
        ({"s": {"unit": "epoch_s"}}, "BIGINT or TIMESTAMP"),
        ({"x": {"unit": "epoch_s"}}, "not None"),
        ({"a": PLAUSIBLE}, "only a declared time"),
        ({"t": {"unit": "epoch_ns"}}, "epoch_us"),
        ({"t": {"from_ms": 0}}, "two ends"),
        ({"t": {"from_ms": 1, "to_ms": 1}}, "from_ms < to_ms"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            create(times)
    with pytest.raises(InvalidRequest, match="epoch_s, epoch_ms, epoch_us"):
        create({}, partition=(PartitionField.parse("d=day(a)"),))
    assert create({"t": {}}).times == {}
    found = create({"a": {"unit": "epoch_s"}}, partition=(PartitionField.parse("d=day(a)"),))
    assert found.partition[0].unit == "epoch_s"
    assert TableConfig.model_validate_json(found.model_dump_json()) == found
    assert "unit" not in found.model_dump()["partition"][0]
    assert TimeColumn(**PLAUSIBLE).describe_range() == "1990 to 2100"
