"""The data source in a real Spark session: one snapshot for a DataFrame, appends whose tasks fail, streams that restart."""

import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from icedb import connect
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from page_blocks import read_blocks

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
PAGE = Path(__file__).parents[3] / "docs" / "spark-source.md"
SCHEMA = "ts timestamp, event string, n int"


class TableUnderTest:
    def __init__(self, spark, folder):
        self.spark = spark
        self.settings = StoreSettings(f"file://{folder}/wh")
        warehouse = self.settings.open()
        self.store, self.paths = warehouse.store, warehouse.table("events").paths
        config = TableConfig.create(
            name="events", partition=(PartitionField.parse("d=day(ts)"),), sort=("event",), merge_fan_in=2
        )
        create_table(TableStore(self.store, self.paths), config)

    def frame(self, *numbers):
        rows = [(datetime(2026, 1, 1 + n % 2, tzinfo=UTC), f"e{n % 3}", n) for n in numbers]
        return self.spark.createDataFrame(rows, SCHEMA).coalesce(1)

    def place(self, call, name="icedb", **options):
        call = call.format(name).option("table", "events").option("store", self.settings.url)
        return call.options(**options)

    def write(self, frame, name="icedb", **options):
        self.place(frame.write, name, **options).mode("append").save()

    def read(self, **options):
        return self.place(self.spark.read, **options).load()

    def numbers(self, **options):
        return sorted(row["n"] for row in self.read(**options).select("n").collect())

    def merge(self):
        merge_table(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test"),
            MergeDriver(SparkRunner(self.spark, self.settings), clock=CLOCK),
            options=MergeOptions(full=True),
        )

    @property
    def log(self):
        return LogReader(TableStore(self.store, self.paths), clock=CLOCK).read()


@pytest.fixture
def table(spark, tmp_path):
    return TableUnderTest(spark, tmp_path)


def test_one_snapshot_for_a_frame_and_filters_that_lose_nothing(table):
    table.write(table.frame(*range(12)).repartition(2), writeId="first")
    table.write(table.frame(*range(12)), writeId="first")
    frame = table.read()
    table.write(table.frame(100))
    # What Spark 4.3 gets wrong with filters that are pushed: those of one use of a frame, applied to the other.
    both = frame.union(frame.filter("event = 'e1'"))
    assert Counter(row["n"] for row in both.collect()) == Counter([*range(12), 1, 4, 7, 10])
    assert frame.count() == 12, "as it was when it was loaded"
    rows = table.read(where="n >= 10 AND ts >= '2026-01-01'", columns="n,ts").orderBy("n").collect()
    assert [(row["n"], row["ts"].astimezone(UTC).day) for row in rows] == [(10, 1), (11, 2), (100, 1)]


def flaky_source(folder):
    """Return a data source each of whose tasks writes its files twice: the first try dies when they are uploaded."""
    # Classes of this function travel by value: workers cannot import a test.
    from icedb_spark import IceDBDataSource  # noqa: PLC0415
    from icedb_spark.batch_write import IceDBWriter  # noqa: PLC0415
    from pyspark import TaskContext  # noqa: PLC0415

    class FlakyWriter(IceDBWriter):
        def write(self, iterator):
            written = super().write(iterator)
            if TaskContext.get().attemptNumber() == 0:
                raise OSError("the first try of this task is lost")
            return written

    class FlakySource(IceDBDataSource):
        @classmethod
        def name(cls):
            return "icedb_flaky"

        def writer(self, schema, overwrite):
            writer = super().writer(schema, overwrite)
            writer.__class__ = FlakyWriter
            return writer

    return FlakySource


def test_a_write_that_fails_changes_nothing(table):
    with pytest.raises(Exception, match="column 'ts' is NULL"):
        table.write(table.frame(8).selectExpr("CAST(NULL AS TIMESTAMP) AS ts", "event", "n"))
    assert len(table.log.files) == 0


@pytest.mark.soak  # a session in which tasks that fail are tried again makes every test of failures take twice as long
def test_tasks_that_run_twice_count_once(table, spark):
    spark.dataSource.register(flaky_source(table.settings.url))
    table.write(table.frame(*range(8)).repartition(2), name="icedb_flaky")
    assert table.numbers() == list(range(8))
    view = table.log
    assert len(view.files) == 1, "one commit"
    written = {info.key for info in list_all(table.store, table.paths.data_prefix).objects}
    live = {marker.path for marker in fold(view).live}
    assert live < written, "files of the tries that were lost are orphans"


def test_a_stream_reads_each_row_once_across_restarts_and_merges(table, spark, tmp_path):
    table.write(table.frame(0, 1, 2, 3))

    def run(**options):
        stream = table.place(spark.readStream, startingFrom="earliest", **options).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .option("path", f"{tmp_path}/out")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(row["n"] for row in spark.read.parquet(f"{tmp_path}/out").select("n").collect())

    assert run() == [0, 1, 2, 3]
    table.write(table.frame(4, 5))
    table.write(table.frame(6, 7))
    table.merge()
    table.write(table.frame(8))
    assert run(maxFilesPerTrigger="2") == list(range(9))


def test_a_streaming_sink_writes_each_micro_batch_once(table, spark, tmp_path):
    """A checkpoint that lost its last commit, as after a crash: Spark repeats the micro-batch."""

    def run():
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/in")
        sink = table.place(stream.writeStream, checkpointLocation=f"{tmp_path}/checkpoint")
        sink.trigger(availableNow=True).start().awaitTermination()
        return sorted(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))

    table.frame(0, 1).write.parquet(f"{tmp_path}/in")
    table.frame(2, 3).write.mode("append").parquet(f"{tmp_path}/in")
    epochs = run()
    assert len(epochs) == 2
    assert (table.numbers(), len(table.log.files)) == ([0, 1, 2, 3], 2)
    for name in (str(epochs[-1]), f".{epochs[-1]}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    table.frame(4).write.mode("append").parquet(f"{tmp_path}/in")
    assert len(run()) == 3
    assert (table.numbers(), len(table.log.files)) == ([0, 1, 2, 3, 4], 3)


def test_columns_whose_names_mean_something_to_an_engine_and_numbers_at_the_edge(spark, tmp_path):
    """Spark has `_metadata`, DuckDB `filename`; NaN is above every number."""
    names = ["filename", "FILE_NAME", "_metadata", "rowid", "_rows", "select", "back`tick", 'double"quote', "a.b"]
    with connect(tmp_path / "lake") as lake:
        table = lake.create_table("named", columns={"n": "BIGINT", "f": "DOUBLE", **dict.fromkeys(names, "VARCHAR")})
        values = [1.5, math.nan, math.inf, -0.0]
        rows = [{"n": n, "f": f, **dict.fromkeys(names, f"{n}.js")} for n, f in enumerate(values)]
        table.append(pa.Table.from_pylist(rows))
    frame = spark.read.format("icedb").option("table", "named").option("store", f"file://{tmp_path}/lake").load()

    def found(condition):
        return sorted(row["n"] for row in frame.filter(condition).select("n").collect())

    # All names by one query each: Python plans each query of the source in processes of its own.
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    assert found(" AND ".join(f"{name} = '1.js'" for name in quoted)) == [1]
    assert found(" AND ".join(f"{name} <> '1.js'" for name in quoted)) == [0, 2, 3]
    assert found("f <> 1.5") == [1, 2, 3]
    assert found("f >= 2") == [1, 2]
    assert found("f = 0") == [3]
    assert found("NOT (f = 1.5)") == [1, 2, 3]
    first = frame.orderBy("n").first().asDict()
    assert {name: first[name] for name in names} == dict.fromkeys(names, "0.js")


def test_the_page_runs_as_it_stands(table, spark, tmp_path):
    names = {"spark": spark, "frame": table.frame(1, 2)}
    table.write(names["frame"])
    for block in read_blocks(PAGE):
        code = block.code.replace('.option("store", "s3://lake/warehouse")', "")
        code = code.replace('"events")', f'"events").option("store", "{table.settings.url}")')
        for option in ("checkpointLocation", "path"):
            code = code.replace(f'"{option}", "…"', f'"{option}", "{tmp_path / option}"')
        exec(compile(code, block.place, "exec"), names)
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    assert Counter(table.numbers()) == {1: 2, 2: 2}
    assert names["events"].count() == 2
    assert spark.read.parquet(str(tmp_path / "path")).count() in (2, 4), "the last write may have come in between"
