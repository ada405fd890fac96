"""Tables that are published for Iceberg, read by engines that nobody here wrote."""

import importlib.util
import operator
from datetime import date, datetime
from pathlib import Path

import duckdb
import pytest
from icedb import connect
from icedb_iceberg import IcebergWriter, metadata_uri, publish_table, read_metadata
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.holds.tags import create_tag
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_log.publish.head import read_publication
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from pyiceberg.table import StaticTable

COMPARISONS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@pytest.fixture
def lake(tmp_path):
    with connect(tmp_path / "lake") as lake:
        yield lake


@pytest.fixture(scope="module")
def duck():
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        package = Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
        con.execute(f"LOAD '{package}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
    with con:
        yield con


def scan(duck, uri, what="*", more=""):
    return duck.execute(f"SELECT {what} FROM iceberg_scan('{uri.removeprefix('file://')}'{more})").fetchall()


def test_times_are_the_same_in_every_time_zone(lake, duck):
    events = lake.create_table("events", partition=["d=day(ts)"], sort=["ts"])
    events.append([{"ts": "2023-06-08T00:00:00Z", "n": 1}, {"ts": "2023-06-08T23:59:59.999999Z", "n": 2}])
    uri = events.publish()
    for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
        duck.execute(f"SET TimeZone = '{zone}'")
        assert scan(duck, uri, "n, ts::VARCHAR") == [(1, "2023-06-08 00:00:00"), (2, "2023-06-08 23:59:59.999999")]
        found = duck.execute(
            f"SELECT n FROM iceberg_scan('{uri.removeprefix('file://')}') WHERE ts = TIMESTAMP '2023-06-08 00:00:00'"
        )
        assert found.fetchall() == [(1,)]
    duck.execute("RESET TimeZone")
    rows = StaticTable.from_metadata(uri).scan(row_filter="ts >= '2023-06-08T12:00:00'").to_arrow().to_pylist()
    assert rows == [{"ts": datetime(2023, 6, 8, 23, 59, 59, 999_999), "n": 2}]


EDGE = datetime(1969, 12, 31, 23, 59, 59, 999_999)
TIMES = [
    EDGE, datetime(1969, 12, 31), datetime(1969, 12, 30, 12), datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 30),
    datetime(1900, 2, 28, 5), datetime(1960, 1, 1), datetime(1969, 11, 30, 23, 59), datetime(2024, 2, 29, 12),
]  # fmt: skip
DATES = sorted({each.date() for each in TIMES})
TEXTS = [
    "e\u0301clair",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\r\nx",
    "ab",
    "a",
    "",
    "\u0915\u094d\u0937\u093f1",
]
NUMBERS = [-(2**63), -(2**63) + 1, -21, -1, 0, 9, 2**63 - 1]


@pytest.mark.parametrize(
    ("kind", "values", "fields"),
    [
        ("VARCHAR", TEXTS, ("c", "p=truncate[1](c)", "p=truncate[2](c)", "p=bucket[3](c)")),
        ("BIGINT", NUMBERS, ("c", "p=truncate[7](c)", "p=truncate[10](c)", "p=bucket[3](c)")),
        ("TIMESTAMP", TIMES, ("c", "p=year(c)", "p=month(c)", "p=day(c)", "p=hour(c)")),
        ("DATE", DATES, ("c", "p=year(c)", "p=month(c)", "p=day(c)")),
        ("BOOLEAN", [True, False], ("c",)),
    ],
)
def test_duckdb_finds_the_rows_of_every_partition(lake, duck, kind, values, fields):
    """What it works out otherwise than the partition spec says is not in the spec (docs/iceberg.md)."""
    for number, field in enumerate(fields):
        times = {"c": {"from_ms": None}} if kind in ("TIMESTAMP", "DATE") else {}
        table = lake.create_table(f"t{number}", declared={"c": kind}, partition=[field], times=times)
        table.append([{"c": each.isoformat() if isinstance(each, date) else each} for each in values])
        path = table.publish().removeprefix("file://")
        for value in values:
            for sign, is_meant in COMPARISONS.items():
                query = f"SELECT count(*) FROM iceberg_scan('{path}') WHERE c {sign} $1::{kind}"
                wanted = sum(is_meant(each, value) for each in values)
                assert duck.execute(query, [value]).fetchall() == [(wanted,)], (field, sign, value)


def test_files_from_before_1970_lie_in_no_day_or_month_of_a_timestamp(lake):
    events = lake.create_table(
        "events", declared={"c": "TIMESTAMP"}, partition=["d=day(c)", "y=year(c)"], times={"c": {"from_ms": None}}
    )
    events.append([{"c": "1969-12-31T23:59:59Z"}, {"c": "1970-01-01T00:00:00Z"}])
    tasks = list(StaticTable.from_metadata(events.publish()).scan().plan_files())
    assert sorted((task.file.spec_id, list(task.file.partition)) for task in tasks) == [(0, []), (1, [0, 0])]


def test_an_incremental_reader_sees_each_appended_row_once(lake):
    events = lake.create_table("events")
    seen, position = [], None
    for at in range(6):
        events.append([{"n": at}])
        if at == 3:
            events.merge(full=True)
        if at % 2:
            table = StaticTable.from_metadata(events.publish())
            found = table.incremental_append_scan(from_snapshot_id_exclusive=position).to_arrow()
            seen += found.column("n").to_pylist()
            position = table.current_snapshot().snapshot_id
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    operations = [each.summary.operation.value for each in table.snapshots()]
    assert operations == ["append", "append", "append", "append", "replace", "append", "append"]


def test_a_tag_is_a_tag_by_which_engines_travel(lake, duck):
    events = lake.create_table("events", partition=["p=identity(c)"])
    events.append([{"n": 1, "c": "ü/%=+"}, {"n": 2, "c": "b"}])
    create_tag(events.open(), "before")
    events.delete("n = 1")
    uri = events.publish()
    table = StaticTable.from_metadata(uri)
    tagged = table.snapshot_by_name("before").snapshot_id
    assert sorted(table.scan(snapshot_id=tagged).to_arrow().column("n").to_pylist()) == [1, 2]
    assert sorted(scan(duck, uri, "n", f", snapshot_from_id => {tagged}::UBIGINT")) == [(1,), (2,)]
    assert scan(duck, uri, "n, c") == [(2, "b")]


def test_duckdb_finds_the_newest_state_by_the_hint(lake, duck):
    events = lake.create_table("events")
    for at in range(3):
        events.append([{"n": at}])
        events.publish()
    folder = events.place.store.uri(f"{events.place.paths.prefix}/_icedb/iceberg")
    assert sorted(scan(duck, folder, "n", ", version_name_format => '%s%s.metadata.json'")) == [(0,), (1,), (2,)]


def test_an_empty_table_has_columns_and_no_rows(lake, duck):
    events = lake.create_table("events", declared={"n": "BIGINT", "ts": "TIMESTAMP"}, partition=["d=day(ts)"])
    uri = events.publish()
    table = StaticTable.from_metadata(uri).scan().to_arrow()
    assert (table.column_names, table.num_rows) == (["n", "ts"], 0)
    events.append([{"n": 1, "ts": "2023-01-01"}])
    events.delete("true")
    uri = events.publish()
    assert scan(duck, uri) == []
    assert StaticTable.from_metadata(uri).scan().to_arrow().num_rows == 0


def test_a_table_of_another_writer_with_types_of_its_own(tmp_path, duck):
    """As the original writes it: nested types, no statistics, no row counts, partitions that only paths name."""
    columns = {
        "id": "INTEGER", "big": "HUGEINT", "price": "DECIMAL(9,2)", "day": "DATE", "at": "TIMESTAMP",
        "zoned": "TIMESTAMP WITH TIME ZONE", "props": 'STRUCT(a BIGINT, "b c" VARCHAR[])', "tags": "VARCHAR[]",
        "counts": "MAP(VARCHAR, INTEGER)", "body": "BLOB", "huge": "UBIGINT",
    }  # fmt: skip
    rows = """SELECT 1::INTEGER id, 7::HUGEINT big, 1.25::DECIMAL(9,2) price, DATE '2023-06-07' AS day,
        TIMESTAMP '2023-06-07 01:02:03' AS at, TIMESTAMPTZ '2023-06-07 01:02:03Z' AS zoned,
        {'a': 1::BIGINT, 'b c': ['x', NULL]} AS props, ['t'] AS tags, MAP {'k': 3::INTEGER} AS counts, 'ab'::BLOB AS body,
        5::UBIGINT AS huge"""
    warehouse = open_warehouse(f"file://{tmp_path}")
    place = warehouse.table("old")
    create_table(place, TableConfig.create(name="old"))
    key = f"{place.paths.data_prefix}whatever/part-1.parquet"
    file = tmp_path / key
    file.parent.mkdir(parents=True)
    duck.execute(f"COPY ({rows}) TO '{file}' (FORMAT parquet)")
    clock = SystemClock()
    now_ms = clock.now_ms()
    log = LogFile(now_ms, columns, markers=(FileMarker(key, file.stat().st_size, now_ms),))
    place.store.put(place.paths.log_key(time_ms=now_ms, commit_id="host-1", is_merged=False), encode_log_file(log))
    table = Table.open(place, clock=clock)
    uri = metadata_uri(table, publish_table(table, writer=IcebergWriter()))
    assert read_metadata(table, read_publication(table))["properties"]["icedb.left-out-columns"] == "huge UBIGINT"
    wanted = {
        "id": 1, "big": 7.0, "price": "1.25", "day": date(2023, 6, 7), "at": datetime(2023, 6, 7, 1, 2, 3),
        "props": {"a": 1, "b c": ["x", None]}, "tags": ["t"], "body": b"ab",
    }  # fmt: skip
    found = StaticTable.from_metadata(uri).scan()
    (row,) = found.to_arrow().to_pylist()
    assert {name: str(value) if name == "price" else value for name, value in row.items() if name in wanted} == wanted
    assert dict(row["counts"]) == {"k": 3}
    assert row["zoned"].isoformat() == "2023-06-07T01:02:03+00:00"
    assert found.count() == 1
    names = ", ".join(f'"{name}"' for name in wanted)
    (values,) = scan(duck, uri, names)
    assert {name: str(each) if name == "price" else each for name, each in zip(wanted, values, strict=True)} == wanted
    assert scan(duck, uri, "count(*)") == [(1,)]


@pytest.mark.skipif(importlib.util.find_spec("chdb") is None, reason="no chDB: `make engines` installs it")
def test_clickhouse_reads_a_published_table(lake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it reads files below its working directory
    from chdb.session import Session  # noqa: PLC0415 - 180 MB, of long tests

    events = lake.create_table("events", partition=["d=day(ts)", "c"])
    events.append([{"ts": "2023-06-08", "c": "ü/%=+", "x": 1}, {"ts": "2023-06-09", "c": "b", "x": 2}])
    events.append([{"ts": "2023-06-08", "c": "b", "x": 3, "late": "new"}])
    folder, _, name = events.publish().removeprefix("file://").partition("/_icedb/iceberg/metadata/")
    settings = f"SETTINGS iceberg_metadata_file_path = '_icedb/iceberg/metadata/{name}'"
    with Session() as session:
        found = session.query(f"SELECT x, c, late FROM icebergLocal('{folder}', {settings}) ORDER BY x", "CSV")
    assert str(found).splitlines() == ['1,"ü/%=+",\\N', '2,"b",\\N', '3,"b","new"']
