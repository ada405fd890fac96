"""Views through a real Spark session: the check, feeds, commits that the query cannot take, and data files that are gone."""

import json

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.jobs.feed_driver import FeedDriver
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.sql.checks import check_view_query
from icedb_engine.units.flush_unit import flush_unit
from icedb_engine.work import FlushUnit
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.feed.feeds import feed_view
from icedb_log.feed.views import create_view, open_source
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.jobs import FlushOutput
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
HOURLY = "SELECT date_trunc('hour', ts) AS hour, event, count(*) AS n, sum(amount) AS amount FROM _rows GROUP BY 1, 2"
MERGED = "SELECT hour, event, sum(n) AS n, sum(amount) AS amount FROM source_files GROUP BY hour, event"


class DirectWriter:
    """Runs each flush as one unit in this process: what is tested here begins behind it. All columns are declared."""

    def __init__(self, store, engine):
        self.store = store
        self.engine = engine

    def write_batches(self, job):
        schema = {**job.schema, **job.config.declared}
        unit = FlushUnit.of(job, self.engine, schema=schema, batches=job.batches, limits=FlushUnitLimits())
        result = flush_unit(unit, self.store, clock=CLOCK)
        return FlushOutput(result.files, schema, job.batches, (), (), result.row_count)


class Warehouse:
    """An events table and its views on a file store."""

    def __init__(self, folder, spark, **declared):
        settings = StoreSettings(f"file://{folder}/store")
        self.warehouse = settings.open()
        self.store, self.paths = self.warehouse.store, self.warehouse.table("events").paths
        engine = EngineLimits(scratch_folder=str(folder / "scratch"))
        limits = JobLimits(FlushUnitLimits(), engine, write_task_bytes=4096)
        self.writer = DirectWriter(self.store, engine)
        self.feeder = FeedDriver(SparkRunner(spark, settings), clock=CLOCK, limits=limits)
        self.changer = MergeDriver(SparkRunner(spark, settings), clock=CLOCK, limits=limits)
        config = TableConfig.create(
            name="events",
            partition=(PartitionField.parse("d=day(ts)"),),
            sort=("event",),
            declared={"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "BIGINT", **declared},
        )
        create_table(TableStore(self.store, self.paths), config)

    def append(self, *rows):
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        stage_batch(
            TableStore(self.store, self.paths), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK)
        )
        assert flush_table(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test"), self.writer
        ).row_count == len(rows)

    def create_view(self, query=HOURLY, **more):
        config = TableConfig.create(
            **{
                "name": "hourly",
                "partition": (PartitionField.parse("d=day(hour)"),),
                "sort": ("event", "hour"),
                **more,
            },
            view_of="events",
            view_query=query,
            declared={"hour": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT", **more.pop("declared", {})},
        )
        create_view(TableStore(self.store, self.warehouse.table(config.name).paths), config, clock=CLOCK)

    def feed(self, name="hourly"):
        view = Table.open(TableStore(self.store, self.warehouse.table(name).paths), clock=CLOCK, owner="test")
        return feed_view(view, open_source(view), self.feeder)

    def rows(self, name):
        """Return all rows of a table as Arrow."""
        snapshot = fold(LogReader(TableStore(self.store, self.warehouse.table(name).paths), clock=CLOCK).read())
        tables = [pq.read_table(self.store.uri(marker.path), partitioning=None) for marker in snapshot.live]
        return pa.concat_tables(tables, promote_options="default")


@pytest.fixture
def warehouse(tmp_path, spark):
    return Warehouse(tmp_path, spark)


def event(second, name="click", **more):
    return {"ts": f"2023-06-{1 + second // 86400:02d}T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z",
            "event": name, **more}  # fmt: skip


def totals(rows, sql):
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        return connection.execute(sql).fetchall()


def test_hourly_counts_are_those_of_all_rows(warehouse, spark):
    source = {"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "BIGINT"}
    config = TableConfig.create(name="hourly", view_of="events", view_query=HOURLY)
    assert check_view_query(config, source) == {
        "hour": "TIMESTAMP",
        "event": "VARCHAR",
        "n": "BIGINT",
        "amount": "BIGINT",
    }
    warehouse.create_view(merge_query=MERGED)
    for turn in range(2):
        warehouse.append(
            *(event(turn * 40_000 + n * 997, "click" if n % 3 else "view", amount=n) for n in range(60)),
            event(turn * 40_000, None),
        )
        assert warehouse.feed().waiting_count == 0
    assert warehouse.feed().committed_key is None
    expected = totals(
        warehouse.rows("events"),
        "SELECT date_trunc('hour', ts) h, event, count(*), sum(amount)::BIGINT FROM rows GROUP BY ALL ORDER BY ALL",
    )
    found = totals(
        warehouse.rows("hourly"),
        "SELECT hour h, event, sum(n)::BIGINT, sum(amount)::BIGINT FROM rows GROUP BY ALL ORDER BY ALL",
    )
    assert len(expected) > 50
    assert found == expected
    partial_count = warehouse.rows("hourly").num_rows
    merged = merge_table(
        Table.open(TableStore(warehouse.store, warehouse.warehouse.table("hourly").paths), clock=CLOCK, owner="test"),
        warehouse.changer,
        options=MergeOptions(full=True),
    )
    assert merged.committed_key is not None
    rows = warehouse.rows("hourly")
    assert len(expected) <= rows.num_rows < partial_count
    assert totals(rows, "SELECT hour h, event, sum(n)::BIGINT, sum(amount)::BIGINT FROM rows GROUP BY ALL ORDER BY ALL") == expected  # fmt: skip
    assert warehouse.feed().committed_key is None


def test_a_commit_that_the_query_cannot_take_is_refused_alone(tmp_path, spark):
    warehouse = Warehouse(tmp_path, spark, amount="VARCHAR")
    warehouse.create_view(
        "SELECT date_trunc('hour', ts) AS hour, event, CAST(amount AS BIGINT) AS n FROM _rows", name="amounts"
    )
    for amount in ("1", "none"):
        warehouse.append(event(1, amount=amount))
    result = warehouse.feed("amounts")
    assert (result.commit_count, result.rows_read, result.row_count) == (1, 1, 1)
    assert "Conversion Error" in result.refused[0].reason and "'none'" in result.refused[0].reason
    assert sorted(warehouse.rows("amounts")["n"].to_pylist()) == [1]


def test_a_query_that_cannot_be_analysed_refuses_all_commits_at_once(warehouse):
    warehouse.create_view("SELECT hour, event, n FROM _rows", name="broken")
    warehouse.append(event(1))
    warehouse.append(event(2))
    result = warehouse.feed("broken")
    assert [reason for each in result.refused if '"hour" not found' not in (reason := each.reason)] == []
    assert (len(result.refused), result.waiting_count) == (2, 0)


def test_a_commit_has_no_more_partitions_than_it_may(warehouse):
    warehouse.create_view(max_partitions_per_flush=1)
    for day in range(2):
        warehouse.append(event(86_400 * day, amount=1))
    taken = [warehouse.feed() for _ in range(2)]
    assert [(each.commit_count, each.waiting_count) for each in taken] == [(1, 1), (1, 0)]


def test_a_data_file_that_is_gone_halts_the_view_and_is_named(warehouse):
    warehouse.create_view()
    warehouse.append(event(1, amount=1))
    (marker,) = fold(LogReader(warehouse, clock=CLOCK).read()).live
    warehouse.store.delete([marker.path])
    with pytest.raises(CorruptLog, match=f"{marker.path} is gone from the store"):
        warehouse.feed()


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT nope FROM _rows", '"nope" not found'),
        ("SELECT ts AS hour FROM other", "relation 'other'"),
        ("SELECT event, count(*) AS n FROM _rows GROUP BY 1", "drops column 'hour'"),
        ("SELECT date_trunc('hour', ts) AS hour, [event] AS event FROM _rows", "to_json"),
    ],
)
def test_a_wrong_query_is_refused_before_a_view_is_made_of_it(query, problem):
    config = TableConfig.create(
        name="hourly", view_of="events", view_query=query, partition=(PartitionField.parse("d=day(hour)"),)
    )
    with pytest.raises(InvalidRequest, match="view_query") as caught:
        check_view_query(config, {"ts": "TIMESTAMP", "event": "VARCHAR"})
    assert problem in str(caught.value)


def test_a_source_without_columns_is_said_to_have_none():
    config = TableConfig.create(name="hourly", view_of="events", view_query=HOURLY)
    with pytest.raises(InvalidRequest, match="table events has no columns yet"):
        check_view_query(config, {})
