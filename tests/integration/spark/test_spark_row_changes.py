"""Deletions, rewrites and merge queries through a real Spark session, on real Parquet files and a real log."""

import json
from datetime import datetime

import duckdb
import pyarrow.parquet as pq
import pytest
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.limits import EngineLimits, JobLimits
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_log.changes.row_changes import delete_rows, rewrite_partitions
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasure
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, SchemaConflict
from icedb_log.holds.erasures import create_erasure
from icedb_log.jobs import CountJob, RowChange
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters
from icedb_log.table.stored_config import read_table_config
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
SCHEMA = {"ts": "TIMESTAMP", "User": "VARCHAR", "n": "BIGINT", "x": "DOUBLE", "a.b": "VARCHAR", "ok": "BOOLEAN"}
DAYS = ("2023-06-01", "2023-06-02", "2023-06-03")


class TableUnderTest(TableStore):
    """One table of three days; Spark changes it, DuckDB says what should be left."""

    def __init__(self, folder, spark, **options):
        self.settings = StoreSettings(f"file://{folder}/store")
        self.parquet = ParquetWarehouse(self.settings.open())
        self.store, self.paths = self.parquet.warehouse.store, self.parquet.warehouse.table("events").paths
        limits = JobLimits(engine=EngineLimits(scratch_folder=str(folder / "scratch"), thread_count=1))
        self.changer = MergeDriver(SparkRunner(spark, self.settings), clock=CLOCK, limits=limits)
        options.setdefault("sort", ("User", "ts"))
        self.parquet.create("events", "d=day(ts)", **options)

    @property
    def config(self):
        return read_table_config(TableStore(self.store, self.paths))

    def add(self, select, day=DAYS[0], **options):
        return self.parquet.commit(
            "events", select, partition=f"d={day}", schema=options.pop("schema", SCHEMA), **options
        )

    def fill(self, days=DAYS):
        for day in days:
            for start in (0, 50):
                self.add(make_rows(day, start, start + 50), day)

    def snapshot(self):
        return fold(LogReader(TableStore(self.store, self.paths), clock=CLOCK).read())

    def rows(self, columns="*", where="true"):
        files = [str(self.store.uri(marker.path)) for marker in self.snapshot().live]
        if not files:
            return []
        scan = f"read_parquet({files}, union_by_name = true, hive_partitioning = false)"
        return sorted(duckdb.sql(f"SELECT {columns} FROM {scan} WHERE {where}").fetchall(), key=str)

    def delete(self, condition, **options):
        return delete_rows(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="t"), self.changer, condition, **options
        )

    def rewrite(self, query, *partitions, **options):
        matches = PartitionMatcher(parse_partition_filters(partitions or [f"d={DAYS[0]}"]), self.config)
        return rewrite_partitions(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="t"),
            self.changer,
            query,
            matches=matches,
            **options,
        )

    def merge(self):
        return merge_table(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="t"),
            self.changer,
            options=MergeOptions(full=True),
        )

    def footers(self):
        for marker in self.snapshot().live:
            metadata = pq.read_metadata(self.store.uri(marker.path)).metadata
            yield marker, {name.decode(): value.decode() for name, value in (metadata or {}).items()}


def make_rows(day, start, stop):
    return (
        f"SELECT TIMESTAMP '{day} 00:00:00' + to_minutes(i::INT) AS ts, 'u' || (i % 7) AS \"User\", i AS n, "
        "i / 4 AS x, CASE WHEN i % 3 = 0 THEN NULL ELSE 'é' || i END AS \"a.b\", "
        f"CASE i % 3 WHEN 0 THEN true WHEN 1 THEN false END AS ok FROM range({start}, {stop}) AS t(i)"
    )


@pytest.fixture
def table(tmp_path, spark):
    table = TableUnderTest(tmp_path, spark)
    table.fill()
    return table


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory, spark):
    """A table that nobody manages to change."""
    table = TableUnderTest(tmp_path_factory.mktemp("unchanged"), spark)
    table.fill()
    return table


def test_a_deletion_takes_exactly_the_rows_for_which_it_is_true(table):
    condition = "\"user\" = 'u3' AND \"a.b\" <> 'é10' AND ts >= '2023-06-02'"
    kept = table.rows(where="NOT coalesce(\"User\" = 'u3' AND \"a.b\" <> 'é10' AND ts >= '2023-06-02', false)")
    before = table.snapshot()
    planned = table.delete(condition, dry_run=True)
    assert table.snapshot() == before
    result = table.delete(condition)
    assert table.rows() == kept
    assert result.rows_removed == 300 - len(kept) > 0
    figures = ("rows_read", "rows_removed", "file_count", "scanned_count", "partitions", "removed_paths", "input_bytes")
    assert [getattr(planned, name) for name in figures] == [getattr(result, name) for name in figures]
    assert (result.scanned_count, result.partitions) == (4, ("d=2023-06-02", "d=2023-06-03"))
    assert [file.key for file in LogReader(table, clock=CLOCK).read().files if "_m_" in file.key] == [
        result.committed_key
    ], "one commit over all partitions"
    for marker, footer in table.footers():
        if marker.path not in {each.path for each in before.live}:
            inputs = json.loads(footer["icedb.inputs"])
            assert set(inputs) <= set(result.removed_paths)
            assert (footer["icedb.kind"], len(inputs)) == ("delete", 2)
            assert marker.stats["User"] == ("u0", "u6", 0)
            users = pq.read_table(table.store.uri(marker.path), partitioning=None)["User"].to_pylist()
            assert users == sorted(users)
    again = table.delete(condition)
    assert (again.committed_key, again.rows_removed) == (None, 0)


def test_false_and_null_stay_and_a_file_without_rows_has_no_successor(table):
    removed = table.delete("n < 50 OR day(ts) = 3")
    assert (removed.file_count, removed.output_count, removed.rows_removed) == (4, 0, 200)
    assert {(row[0].day, row[1] >= 50) for row in table.rows("ts, n")} == {(1, True), (2, True)}
    table.delete("NOT ok")
    assert {row[0] for row in table.rows("ok")} == {True, None}
    table.delete("true")
    assert table.snapshot().live == ()


def test_narrow_wide_and_missing_columns_are_brought_to_the_schema(tmp_path, spark):
    table = TableUnderTest(tmp_path, spark, evolution="widen")
    moment = "TIMESTAMP '2023-06-01' AS ts, 'a' AS \"User\""
    narrow = {"ts": "TIMESTAMP", "User": "VARCHAR", "x": "BIGINT", "at": "DATE"}
    table.add(f"SELECT {moment}, 7::INT AS x, DATE '2023-01-01' AS at", schema=narrow)
    wide = {**narrow, "more": "VARCHAR"}
    table.add(
        f"SELECT {moment}, 2.5::DOUBLE AS x, TIMESTAMP '2023-01-02 01:00:00' AS at, 'm' AS more",
        schema=wide,
        widened={"x": "DOUBLE", "at": "TIMESTAMP"},
    )
    table.add(f"SELECT {moment}, 9::DOUBLE AS x", schema=wide, widened={"x": "DOUBLE", "at": "TIMESTAMP"})
    assert table.delete("x > 8.5").rows_removed == 1
    assert table.rewrite("SELECT * FROM _rows").rows_removed == 0
    assert table.rows('ts, "User", x, "at", more') == [
        (datetime(2023, 6, 1), "a", 2.5, datetime(2023, 1, 2, 1), "m"),
        (datetime(2023, 6, 1), "a", 7.0, datetime(2023, 1, 1), None),
    ]


def test_an_aggregate_over_rounds_of_merges_is_that_over_all_rows(tmp_path, spark):
    query = 'SELECT min(ts) AS ts, "User", sum(n) AS n, max(ok) AS ok FROM source_files GROUP BY "User"'
    table = TableUnderTest(tmp_path, spark, merge_query=query, sort=("User",))
    everything = []
    for round_number in range(3):
        for day in DAYS[:2]:
            for start in (0, 30):
                select = make_rows(day, start + round_number, start + round_number + 40)
                everything.append(select)
                table.add(select, day)
        result = table.merge()
        assert result.committed_key
    expected = duckdb.sql(
        f'SELECT min(ts), "User", sum(n)::BIGINT, max(ok) FROM ({" UNION ALL ".join(everything)}) '
        'GROUP BY "User", ts::DATE'
    ).fetchall()
    assert table.rows('ts, "User", n, ok') == sorted(expected, key=str)
    assert len(table.snapshot().live) == 2
    assert {footer["icedb.kind"] for _, footer in table.footers()} == {"merge"}


def test_a_query_may_keep_the_newest_row_of_each_key(tmp_path, spark):
    query = (
        'WITH ranked AS (SELECT *, row_number() OVER (PARTITION BY "User" ORDER BY ts DESC) AS place FROM source_files) '
        "SELECT * EXCLUDE (place) FROM ranked WHERE place = 1"
    )
    table = TableUnderTest(tmp_path, spark, merge_query=query)
    table.fill(DAYS[:2])
    table.merge()
    table.add("SELECT TIMESTAMP '2023-06-01 23:00:00' AS ts, 'u1' AS \"User\", -1 AS n")
    table.merge()
    assert len(table.rows()) == 14
    assert table.rows("ts, n", "\"User\" = 'u1' AND ts < '2023-06-02'") == [(datetime(2023, 6, 1, 23), -1)]


def test_a_rewrite_replaces_the_rows_of_a_partition(table):
    others = table.rows(where="ts >= '2023-06-02'")
    result = table.rewrite(
        "SELECT * EXCLUDE (x), NULL AS x FROM _rows WHERE \"User\" < 'u2' UNION ALL "
        "SELECT * EXCLUDE (x), x FROM _rows ORDER BY ALL LIMIT 3"
    )
    assert (result.rows_read, result.rows_removed, result.output_count) == (100, 97, 1)
    assert table.rows(where="ts >= '2023-06-02'") == others
    assert {footer["icedb.kind"] for _, footer in table.footers() if "icedb.kind" in footer} == {"rewrite"}
    dropped = table.rewrite('SELECT ts, "User" FROM _rows')
    assert (dropped.rows_read, dropped.rows_removed) == (3, 0)
    assert set(table.rows("n, ok", "ts < '2023-06-02'")) == {(None, None)}, "what a query leaves out is NULL"
    empty = table.rewrite("SELECT * FROM _rows WHERE false", "d<2023-06-03")
    assert (empty.output_count, empty.partitions) == (0, ("d=2023-06-01", "d=2023-06-02"))
    assert table.rows() == [row for row in others if row[0] >= datetime(2023, 6, 3)]


def test_a_rewrite_that_does_not_fit_its_scratch_is_refused_before_it_starts(unchanged, spark):
    limits = JobLimits(engine=EngineLimits(scratch_bytes=1000))
    unchanged_changer, unchanged.changer = (
        unchanged.changer,
        MergeDriver(SparkRunner(spark, unchanged.settings), clock=CLOCK, limits=limits),
    )
    try:
        with pytest.raises(InvalidRequest, match=r"takes about \d+ bytes of scratch, and a task has 1000.*Nothing was"):
            unchanged.rewrite("SELECT * FROM _rows")
    finally:
        unchanged.changer = unchanged_changer


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ('SELECT "User", n FROM _rows', "drops column 'ts', which partition d=day\\(ts\\) needs"),
        ("SELECT ts FROM _rows", "drops column 'User', which the table is sorted by"),
        ("SELECT *, 1 AS more FROM _rows", "gives column 'more', which the table does not have"),
        ("SELECT * EXCLUDE (n), CAST(n AS VARCHAR) AS n FROM _rows", "'n' as VARCHAR, and the table has BIGINT"),
        ("SELECT * EXCLUDE (n), n / 2 AS n FROM _rows", "'n' as DOUBLE, and the table has BIGINT"),
        ('SELECT ts, wow AS "User" FROM _rows', 'column "wow" not found'),
        ("SELECT *, 1 AS __icedb_ordinal FROM _rows", "does not have"),
        ('SELECT ts, "User", CAST("User" AS BIGINT) AS n FROM _rows', "Conversion Error"),
        ('SELECT ts + INTERVAL 1 DAY AS ts, "User" FROM _rows', "'2023-06-02 00:.*belongs into d=2023-06-02"),
        ('SELECT CAST(NULL AS TIMESTAMP) AS ts, "User" FROM _rows', "ts = 'None', and NULL has no partition"),
    ],
)
def test_a_query_that_does_not_fit_changes_nothing(unchanged, query, reason):
    before = unchanged.snapshot()
    with pytest.raises(InvalidRequest, match=reason):
        unchanged.rewrite(query)
    assert unchanged.snapshot() == before


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("wow = 1", 'column "wow" not found'),
        ("n + 1", "condition is BIGINT, not BOOLEAN"),
        ("random() < 0.5", "another one each time"),
        ('CAST("User" AS BIGINT) = 1', "condition: Conversion Error"),
        ("error('x') IS NULL OR n = 1", "condition: .*x"),
    ],
)
def test_a_condition_that_does_not_fit_changes_nothing(unchanged, condition, reason):
    before = unchanged.snapshot()
    with pytest.raises(InvalidRequest, match=reason):
        unchanged.delete(condition)
    assert unchanged.snapshot() == before


def test_a_merge_query_that_fails_stops_the_table_with_the_remedy(tmp_path, spark):
    table = TableUnderTest(
        tmp_path, spark, merge_query='SELECT ts, CAST("User" AS BIGINT) AS n, "User" FROM source_files'
    )
    table.fill(DAYS[:1])
    with pytest.raises(SchemaConflict, match=r"merge_query: .*Conversion Error.*table alter events --merge-query"):
        table.merge()
    assert len(table.snapshot().live) == 2


def test_files_that_cannot_be_read_are_named(table, tmp_path):
    gone, cut, other = (table.snapshot().live[place] for place in (0, 2, 4))
    change = RowChange("delete", "n = 1")

    def count(marker):
        table.changer.count_rows(CountJob(table.paths, table.config, SCHEMA, change, (marker,)))

    table.store.delete([gone.path])
    body = table.store.get(cut.path).body
    table.store.put(cut.path, body[: len(body) // 2])
    with pytest.raises(NotFound, match=gone.path):
        count(gone)
    with pytest.raises(CorruptLog, match=cut.path):
        count(cut)
    with pytest.raises(InvalidRequest, match="condition: "):
        table.changer.count_rows(
            CountJob(table.paths, table.config, SCHEMA, RowChange("delete", 'CAST("User" AS INT) = 1'), (other,))
        )
    duckdb.sql(f"COPY (SELECT 'text' AS n FROM range(50)) TO '{tmp_path}/other.parquet'")
    table.store.upload(other.path, tmp_path / "other.parquet")
    with pytest.raises(SchemaConflict, match=f"'n' is VARCHAR in data file {other.path}.* has 'n' as BIGINT"):
        count(other)
    assert not list((tmp_path / "scratch").iterdir()), "nothing stays in the scratch folder"


def test_an_erasure_waits_for_what_spark_and_the_log_left_behind(tmp_path, spark):
    table = TableUnderTest(tmp_path, spark)
    for start in (0, 50):
        table.add(make_rows(DAYS[0], start, start + 50))
    harmless = table.add(make_rows(DAYS[1], 0, 1), DAYS[1])
    table.merge()
    before = {marker.path for marker in table.snapshot().live}
    leftover, damaged = (table.paths.data_key(partition=f"d={DAYS[0]}", file_id=name) for name in ("ab", "cd"))
    table.store.put(leftover, table.store.get(min(before)).body)
    table.store.put(damaged, b"PAR1 no longer")
    condition = "\"User\" = 'u3' and n < 90"
    erasure_id = create_erasure(table, condition=condition, clock=CLOCK).erasure_id
    progress = advance_erasure(Table.open(table, clock=CLOCK, owner="t"), table.changer, erasure_id)
    erasure = progress.erasure
    assert (erasure.state, progress.waits_for, erasure.row_count) == ("deleted", "janitor", 13)
    assert table.rows(where="\"User\" = 'u3' and n < 90") == []
    assert (min(before) in erasure.dead, len(erasure.dead)) == (True, 3)
    assert set(erasure.unnamed) == {leftover, damaged}
    assert harmless not in erasure.objects
