"""The data source as Spark calls it, pickled where Spark pickles it, without a JVM."""

import pickle
from datetime import UTC, date, datetime
from typing import ClassVar

import pyarrow as pa
import pytest
from icedb_engine.work import DataFile
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import SystemClock
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, Unavailable
from icedb_log.holds.leases import read_leases
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_spark import IceDBDataSource, driver
from icedb_spark.batch_write import WrittenFiles
from icedb_spark.options import parse_read_options, parse_stream_options, parse_write_options
from icedb_spark.scan import FilePartition, deal_files
from icedb_spark.values import find_sql_type, make_spark_schema
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark_icedb import DefaultSource
from structlog.testing import capture_logs

UTC_US = pa.timestamp("us", tz="UTC")
TYPES = {
    "ts": spark_types.TimestampType(),
    "event": spark_types.StringType(),
    "n": spark_types.IntegerType(),
    "x": spark_types.DoubleType(),
    "day": spark_types.DateType(),
    "ok": spark_types.BooleanType(),
}
ARROW = {"ts": UTC_US, "event": pa.string(), "n": pa.int32(), "x": pa.float64(), "day": pa.date32(), "ok": pa.bool_()}


def row(number, **more):
    return {
        "ts": datetime(2026, 1, 1 + number % 3, 12, tzinfo=UTC),
        "event": f"e{number % 4}",
        "n": number,
        "x": number / 2,
        "day": date(2026, 1, 1),
        "ok": number % 2 == 0,
        **more,
    }


class Table(TableStore):
    def __init__(self, folder, **config):
        self.url = f"file://{folder}/wh"
        self.scratch = f"{folder}/scratch"
        warehouse = StoreSettings(self.url).open()
        self.store, self.paths = warehouse.store, warehouse.table("events").paths
        fields = {"name": "events", "partition": (PartitionField.parse("d=day(ts)"),), "sort": ("event",), **config}
        create_table(self, TableConfig.create(**fields))

    def source(self, **options):
        named = {"table": "events", "store": self.url, "scratchFolder": self.scratch, **options}
        return IceDBDataSource({name: str(value) for name, value in named.items()})

    def writer(self, *columns, overwrite=False, types=None, **options):
        schema = spark_types.StructType(
            [spark_types.StructField(name, (types or TYPES)[name]) for name in columns or TYPES]
        )
        return self.source(**options).writer(schema, overwrite)

    def write(self, *tasks, columns=tuple(TYPES), **options):
        """Write as Spark does: the writer travels, each task answers, the driver commits."""
        body = pickle.dumps(self.writer(*columns, **options))
        messages = [self.run_task(pickle.loads(body), rows, columns) for rows in tasks]
        pickle.loads(body).commit(messages)

    def run_task(self, writer, rows, columns=tuple(TYPES)):
        arrays = [pa.array([each.get(name) for each in rows], ARROW[name]) for name in columns]
        return pickle.loads(pickle.dumps(writer.write(iter([pa.record_batch(arrays, names=list(columns))]))))

    def load(self, **options):
        """Load as Spark does: the schema is asked for once, then the source travels."""
        source = self.source(**options)
        return Frame(source.schema(), pickle.dumps(source))

    def read(self, **options):
        return self.load(**options).rows()

    @property
    def live(self):
        return fold(LogReader(TableStore(self.store, self.paths), clock=SystemClock()).read()).live


class Frame:
    def __init__(self, schema, body):
        self.schema, self.body = schema, body

    def plan(self):
        source = pickle.loads(self.body)
        reader = source.reader(self.schema)
        travelled = pickle.loads(pickle.dumps((reader, source)))
        return reader.partitions(), travelled[0]

    def rows(self):
        partitions, reader = self.plan()
        found = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
        return sorted(found, key=lambda each: each.get("n") or 0)


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def test_all_types_go_in_and_come_out(table):
    rows = [row(0), row(1), {**dict.fromkeys(TYPES), "ts": row(2)["ts"], "n": 2}]
    table.write(rows[:2], rows[2:])
    frame = table.load()
    assert frame.rows() == rows
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("ts", "timestamp"),
        ("event", "string"),
        ("n", "bigint"),
        ("x", "double"),
        ("day", "date"),
        ("ok", "boolean"),
    ]


def test_a_frame_reads_the_same_snapshot_each_time(table):
    table.write([row(0)])
    frame = table.load()
    table.write([row(1)])
    assert [each["n"] for each in frame.rows()] == [0]
    assert [each["n"] for each in table.read()] == [0, 1]


def test_what_travels_to_tasks_has_no_file_list(table):
    table.write([row(number) for number in range(30)])
    frame = table.load()
    source = pickle.loads(frame.body)
    before = len(pickle.dumps(source))
    reader = source.reader(frame.schema)
    travels = pickle.loads(pickle.dumps((reader, source)))
    assert travels[0]._files == ()
    assert travels[1]._pinned is None
    assert before > len(pickle.dumps(source))


def test_columns_that_files_lack_or_have_narrower(table):
    table.write([row(0, event=None)], columns=("ts", "event", "n"))
    alter_table_config(table, {"evolution": "widen"}, clock=SystemClock())
    alter_table_config(table, {"declared": {"ts": "TIMESTAMP", "n": "DOUBLE", "late": "DATE"}}, clock=SystemClock())
    table.write([row(1)], columns=("ts", "n", "event"))
    assert [(each["n"], each["event"], each["late"]) for each in table.read()] == [(0.0, None, None), (1.0, "e1", None)]


def test_a_condition_leaves_out_files_and_rows(table):
    table.write([row(number) for number in range(12)])
    frame = table.load(where="ts < '2026-01-02' AND event <> 'e0'", columns="n, event")
    partitions, _ = frame.plan()
    assert [len(part.value) for part in partitions] == [1]
    assert frame.rows() == [{"n": 3, "event": "e3"}, {"n": 6, "event": "e2"}, {"n": 9, "event": "e1"}]
    assert table.read(where="event = 'none'") == []
    by_partition = table.load(partitions='{"d": ["2026-01-01", "2026-01-03"]}')
    assert {each["n"] % 3 for each in by_partition.rows()} == {0, 2}


def test_time_travel_and_leases(table):
    table.write([row(0)])
    at_ms = fold(LogReader(table, clock=SystemClock()).read()).last_commit_ms
    table.write([row(1)])
    assert [each["n"] for each in table.read(asOf=at_ms, lease="1m")] == [0]
    (lease,) = read_leases(table)
    assert (lease.at_ms, lease.holder) == (at_ms, "spark read")


def test_a_table_without_columns_or_rows(table, tmp_path):
    assert table.read() == [], "a declared column is one"
    (tmp_path / "b").mkdir()
    with pytest.raises(InvalidRequest, match="has no columns yet"):
        Table(tmp_path / "b", partition=(), sort=()).read()


def test_a_read_without_files_runs_one_empty_task(table):
    partitions, reader = table.load().plan()
    assert partitions == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_schema_of_the_users_is_refused(table):
    source = table.source()
    with pytest.raises(InvalidRequest, match="give no schema"):
        source.reader(spark_types.StructType([]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"were": "n = 1"}, "option 'were' is not known"),
        ({"where": "nothing = 1"}, "no column 'nothing'"),
        ({"columns": "n,nothing"}, "no column 'nothing'"),
        ({"columns": "n,n"}, "none twice"),
        ({"columns": '["n", 1]'}, "list of names"),
        ({"partitions": '{"e": "x"}'}, "'e'"),
        ({"partitions": "[1]"}, "write an object"),
        ({"partitions": "{"}, "not JSON"),
        ({"asOf": "yesterday"}, "not a time"),
        ({"asOf": "2200-01-01"}, "future"),
        ({"asOf": "2026-01-01", "tag": "p"}, "own time"),
        ({"lease": "long"}, "not a duration"),
        ({"splitBytes": "0"}, "not a size"),
        ({"where": " "}, "is empty"),
        ({"path": "x"}, "give no path"),
        ({"table": ""}, "is empty"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    table = Table(tmp_path, declared={"n": "BIGINT", "event": "VARCHAR"})
    with pytest.raises(InvalidRequest, match=message):
        table.read(**options)


def test_an_unknown_table(table):
    with pytest.raises(NotFound, match="'nope' does not exist"):
        table.read(table="nope")
    with pytest.raises(InvalidRequest, match="give option table"):
        parse_read_options({"store": "file:///tmp"})


def test_options_of_streams_and_writes():
    place = {"table": "t", "store": "file:///x"}
    stream = parse_stream_options({**place, "starting_from": "2026-01-01", "MAXFILESPERTRIGGER": "7", "lease": "0"})
    assert (stream.starting_ms, stream.max_files, stream.lease_ms) == (1_767_225_600_000, 7, 0)
    assert parse_stream_options({**place, "startingFrom": "earliest"}).starts_with_all
    assert not parse_stream_options({**place, "failOnDataLoss": "False"}).fails_on_data_loss
    for wrong in ({"asOf": "2026-01-01"}, {"maxFilesPerTrigger": "-1"}, {"failOnDataLoss": "no"}):
        with pytest.raises(InvalidRequest):
            parse_stream_options({**place, **wrong})
    assert parse_write_options({**place, "writeId": "w", "wait": "1s"}).wait_ms == 1000
    with pytest.raises(InvalidRequest, match="not known here"):
        parse_write_options({**place, "where": "n = 1"})


def test_decimals_are_the_same_type_in_a_table():
    for kind in ("decimal(18,0)", "decimal(15,2)", "decimal(38,18)"):
        assert find_sql_type("n", kind) == kind.upper()
    schema = make_spark_schema({"n": "DECIMAL(18,2)"})
    assert schema.fields[0].dataType.simpleString() == "decimal(18,2)"


def test_a_task_has_the_memory_and_the_scratch_that_the_options_say():
    place = {"table": "t", "store": "file:///x"}
    engine = parse_read_options({**place, "taskMemory": "1g", "scratchFolder": "/scratch"}).place.engine
    assert (engine.memory_bytes, engine.scratch_folder) == (1 << 30, "/scratch")
    assert parse_write_options({**place, "task_memory": "64m"}).place.engine.memory_bytes == 64 << 20
    assert parse_read_options(place).place.engine.memory_bytes == 512 << 20


def test_files_are_dealt_out_evenly():
    files = [DataFile(f"f{number}", size, 1) for number, size in enumerate([90, 10, 50, 50, 40, 60])]
    dealt = deal_files(files, split_bytes=100)
    assert all(isinstance(part, FilePartition) for part in dealt)
    assert sorted(sum(file.size_bytes for file in part.value) for part in dealt) == [100, 100, 100]
    assert sorted(file.path for part in dealt for file in part.value) == sorted(file.path for file in files)
    assert deal_files([], split_bytes=1) == []


def test_a_write_is_one_commit_of_one_try_of_each_task(table):
    body = pickle.dumps(table.writer())
    lost = table.run_task(pickle.loads(body), [row(0)])
    won = table.run_task(pickle.loads(body), [row(0)])
    other = table.run_task(pickle.loads(body), [row(1)])
    assert not table.live
    pickle.loads(body).commit([won, other])
    assert sorted(marker.path for marker in table.live) == sorted(m.path for m in (*won.read(), *other.read()))
    assert table.store.head(lost.read()[0].path), "an orphan, for the janitor"
    assert [each["n"] for each in table.read()] == [0, 1]


def test_a_write_that_fails_changes_nothing(table):
    writer = table.writer()
    good = table.run_task(writer, [row(0)])
    bad = table.run_task(writer, [row(1, ts=None)])
    assert bad.problem is not None
    with pytest.raises(InvalidRequest, match="column 'ts' is NULL"):
        writer.commit([good, bad])
    with pytest.raises(Unavailable, match="Spark lost what a task wrote"):
        writer.commit([good, None])
    writer.abort([None, None])
    assert not table.live


def test_a_write_under_a_name_counts_once(table):
    table.write([row(0)], writeId="load 1")
    table.write([row(0)], writeId="load 1")
    table.write([row(1)], writeId="load 2")
    assert [each["n"] for each in table.read()] == [0, 1]
    done = table.writer(writeId="load 1")
    assert table.run_task(done, [row(9)]) == WrittenFiles()


def test_a_named_write_that_nobody_heard_of_counts_once(table, monkeypatch):
    def forget(*_):
        raise CommitOutcomeUnknown("no answer")

    monkeypatch.setattr(driver, "mark_staged", forget)
    table.write([row(0)], writeId="load")
    table.write([row(0)], writeId="load")
    assert [each["n"] for each in table.read()] == [0]


def test_two_writers_under_one_name_at_once(table):
    first, second = table.writer(writeId="x"), table.writer(writeId="x")
    one, two = table.run_task(first, [row(0)]), table.run_task(second, [row(0)])
    first.commit([one])
    second.commit([two])
    assert len(table.read()) == 1


def test_rows_are_only_added(table):
    with pytest.raises(InvalidRequest, match=r'write with mode\("append"\)'):
        table.writer(overwrite=True)


@pytest.mark.parametrize(
    ("columns", "types", "message"),
    [
        (("ts", "n"), {**TYPES, "n": spark_types.StringType()}, "'n' as VARCHAR, and the table has BIGINT"),
        (("n",), TYPES, "drops column 'ts'"),
        (("ts", "event", "l"), {**TYPES, "l": spark_types.ArrayType(spark_types.LongType())}, "to_json"),
        (("ts", "event", "b"), {**TYPES, "b": spark_types.BinaryType()}, "which a table cannot hold"),
        (("ts", "event", "N"), {**TYPES, "N": spark_types.LongType()}, "the table has 'n'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, columns, types, message):
    table = Table(tmp_path, declared={"n": "BIGINT", "event": "VARCHAR"})
    with pytest.raises(InvalidRequest, match=message):
        table.writer(*columns, types=types)


def test_a_table_that_changes_during_a_write(table):
    writer = table.writer("ts", "event")
    message = table.run_task(writer, [row(0)], ("ts", "event"))
    table.write([row(1)])
    writer.commit([message])
    assert len(table.read()) == 2
    clash = table.writer("ts", "event", "late", types={**TYPES, "late": spark_types.LongType()})
    with_late = WrittenFiles(message.body)
    alter_table_config(table, {"declared": {"ts": "TIMESTAMP", "late": "DATE"}}, clock=SystemClock())
    with pytest.raises(InvalidRequest, match="'late' is BIGINT in this write"):
        clash.commit([with_late])


def test_a_view_takes_no_rows(table):
    config = TableConfig.create(name="hourly", view_of="events", view_query="SELECT * FROM _rows")
    create_table(TableStore(table.store, table.paths.sibling("hourly")), config)
    with pytest.raises(InvalidRequest, match="takes no batches"):
        table.writer("n", table="hourly")


def test_a_write_gets_promoted_columns_by_its_text_and_gives_none_itself(tmp_path):
    plan = PartitionField.parse("plan=plan")
    table = Table(tmp_path, partition=(plan,), sort=("plan",), promoted={"plan": ("event", "plan")})
    with pytest.raises(InvalidRequest, match=r"drops column 'event', which partition plan needs"):
        table.writer("n")
    with pytest.raises(InvalidRequest, match=r"column 'plan' is promoted: its values are those of event.plan"):
        table.writer("event", "plan", types={**TYPES, "plan": spark_types.StringType()})
    texts = ['{"plan":"pro"}', '{"plan":"free"}']
    table.write([row(number, event=text) for number, text in enumerate(texts)], columns=("n", "event"))
    assert [(each["event"], each["plan"]) for each in table.read()] == list(zip(texts, ("pro", "free"), strict=True))
    assert sorted(table.paths.partition_of(file.path) for file in table.live) == ["plan=free", "plan=pro"]


def test_values_of_a_write_that_do_not_fit_a_promoted_column_are_counted(tmp_path):
    table = Table(tmp_path, declared={"price": "DOUBLE"}, promoted={"price": ("event", "price")})
    rows = [row(number, event=f'{{"price":{text}}}') for number, text in enumerate(("1", '"1"', "{}"))]
    with capture_logs() as logs:
        table.write(rows[:2], rows[2:])
    assert [each["price"] for each in table.read()] == [1, None, None]
    assert [each["misfits"] for each in logs if each["event"] == "write committed"] == [2]


def test_a_stream_reader_travels_and_follows(table):
    table.write([row(0)])
    source = table.source(startingFrom="earliest", where="n <> 2", maxFilesPerTrigger=1)
    schema = source.schema()
    reader = source.streamReader(schema)
    assert reader.getDefaultReadLimit() == ReadMaxFiles(1)
    start = reader.initialOffset()
    table.write([row(1)])
    table.write([row(2)])
    seen = []
    offsets = [start]
    while True:
        end = reader.latestOffset(offsets[-1], ReadMaxFiles(1))
        if end is offsets[-1]:
            break
        tasks = pickle.loads(pickle.dumps(reader))
        seen.append(
            [
                each["n"]
                for part in reader.partitions(offsets[-1], end)
                for batch in tasks.read(part)
                for each in batch.to_pylist()
            ]
        )
        reader.commit(end)
        offsets.append(end)
    assert seen == [[0], [1], []]
    reader.stop()
    again = pickle.loads(pickle.dumps(reader))
    assert len(again.partitions(start, again.latestOffset(start, ReadAllAvailable()))) == 1
    again.stop()


def test_a_stream_that_is_to_end_ends(table):
    source = table.source(lease="0")
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    table.write([row(0)])
    reader.prepareForTriggerAvailableNow()
    table.write([row(1)])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(reader.partitions(start, end)[0].value) == 1
    assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_a_micro_batch_counts_once(table, monkeypatch):
    """Spark makes one writer for the tasks and another one for the commit, and repeats what it has no answer to."""

    class Context:
        properties: ClassVar = {"sql.streaming.queryId": "q"}
        getLocalProperty = properties.get

    def run(number, epoch, *, query="q", tell=True):
        Context.properties["sql.streaming.queryId"] = query
        schema = spark_types.StructType([spark_types.StructField(name, kind) for name, kind in TYPES.items()])
        message = table.run_task(table.source().streamWriter(schema, overwrite=False), [row(number)])
        if tell:
            table.source(checkpointLocation="c").streamWriter(schema, overwrite=False).commit([message], epoch)
        return message

    monkeypatch.setattr("icedb_spark.stream_write.TaskContext.get", Context)
    run(0, 0)
    run(0, 0)
    run(1, 1)
    run(2, 0, query="another checkpoint")
    run(3, 2, tell=False)
    assert [each["n"] for each in table.read()] == [0, 1, 2]
    with pytest.raises(InvalidRequest, match="does not tell its tasks"):
        run(4, 3, query="")
    schema = spark_types.StructType([spark_types.StructField("ts", TYPES["ts"])])
    with pytest.raises(InvalidRequest, match="leave it out"):
        table.source(writeId="w").streamWriter(schema, overwrite=False)
    with pytest.raises(InvalidRequest, match=r'outputMode\("append"\)'):
        table.source().streamWriter(schema, overwrite=True)


def test_spark_finds_it_by_itself():
    assert DefaultSource is IceDBDataSource
    assert DefaultSource.name() == "icedb"
