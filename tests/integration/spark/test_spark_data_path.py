"""Flush and merge through a real Spark session on a directory store."""

import gc
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.jobs import merge_driver
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_session import is_session_alive, open_spark
from icedb_engine.spark.spark_tasks import TaskUnits, make_task
from icedb_engine.work import FlushUnit, encode
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import NotFound, SchemaConflict
from icedb_log.jobs import BatchWriter, FlushJob, GroupMerger, MergeGroup, MergeJob, StagedBatch
from icedb_log.store_settings import StoreSettings
from icedb_log.table.table_config import PartitionField, TableConfig
from waiting import wait_until

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
CONFIG = TableConfig.create(
    name="events", partition=(PartitionField.parse("d=day(ts)"),), sort=("event", "ts"), row_group_rows=2048
)
SMALL_UNITS = FlushUnitLimits(unit_target_bytes=1)
"""Each batch becomes a unit of its own, and each partition a write task."""


class Table:
    def __init__(self, folder):
        self.settings = StoreSettings(f"file://{folder}/store")
        warehouse = self.settings.open()
        self.store, self.paths = warehouse.store, warehouse.table("events").paths
        self.scratch = folder / "scratch"

    def stage(self, *rows, body=None):
        body = body or "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        batch_id = new_batch_id(CLOCK)
        key = self.paths.staging_key(batch_id=batch_id, staging_format="ndjson")
        self.store.put(key, body)
        return StagedBatch(key, batch_id, "ndjson", len(body), 0)

    def limits(self, batch=None, direct_bytes=0):
        engine = EngineLimits(scratch_folder=str(self.scratch))
        return JobLimits(batch or FlushUnitLimits(), engine, direct_bytes=direct_bytes, write_task_bytes=5000)

    def writer(self, spark, batch=None, direct_bytes=0) -> BatchWriter:
        return FlushDriver(SparkRunner(spark, self.settings), clock=CLOCK, limits=self.limits(batch, direct_bytes))

    def flush_job(self, *batches, schema=None, config=CONFIG):
        return FlushJob(
            paths=self.paths, config=config, schema=schema or {}, batches=batches, commit_id="c0ffee", time_ms=1
        )

    def merge_job(self, *groups, schema):
        return MergeJob(paths=self.paths, config=CONFIG, schema=schema, groups=groups, commit_id="c1", time_ms=2)

    def rows(self, *markers):
        return [
            row
            for marker in markers
            for row in pq.read_table(self.store.uri(marker.path), partitioning=None).to_pylist()
        ]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_driver, "DIRECT_FILES", 0)  # merges are jobs of Spark, however small
    table = Table(tmp_path)
    yield table
    assert list(tmp_path.glob("scratch/*")) == []


def events(number, count=200):
    return [
        {
            "ts": f"2023-06-{7 + i % 3:02d}T{i % 24:02d}:00:00Z",
            "event": f"e{(i * 7 + number) % 5}",
            "n": number * count + i,
        }
        for i in range(count)
    ]


def test_events_become_files_and_files_become_fewer(spark, table):
    merger: GroupMerger = MergeDriver(SparkRunner(spark, table.settings), clock=CLOCK, limits=table.limits())
    batches = [table.stage(*events(number)) for number in range(5)]
    gone = table.stage({"ts": 0})
    table.store.delete([gone.key])
    bad = table.stage(body=b"{oops\n")
    flushed = table.writer(spark, SMALL_UNITS).write_batches(table.flush_job(*batches[:2], gone, bad, *batches[2:4]))
    assert flushed.accepted == tuple(batches[:4])
    assert flushed.missing == (gone,)
    assert [rejected.batch for rejected in flushed.rejected] == [bad]
    assert "line 1 is not a JSON object" in flushed.rejected[0].reason
    assert flushed.schema == {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT"}
    assert flushed.row_count == 800
    assert len(flushed.files) == 3, "one file for each partition, whatever the number of units"
    more = table.writer(spark, direct_bytes=10**9).write_batches(table.flush_job(batches[4], schema=flushed.schema))
    assert [len(more.files), more.row_count] == [3, 200]

    by_partition = {}
    for marker in sorted((*flushed.files, *more.files), key=lambda marker: marker.path):
        by_partition.setdefault(table.paths.partition_of(marker.path), []).append(marker)
    groups = [MergeGroup(partition, tuple(markers)) for partition, markers in by_partition.items()]
    merged = merger.merge_groups(table.merge_job(*groups, schema=flushed.schema))
    assert sorted((result.group for result in merged), key=lambda group: group.partition) == groups
    outputs = [output for result in merged for output in result.outputs]
    assert [table.paths.partition_of(m.path) for m in outputs] == [result.group.partition for result in merged]
    for result in merged:
        assert result.rows_read == sum(marker.row_count for marker in result.group.inputs)
    for marker in (*flushed.files, *more.files, *outputs):
        keys = [(row["event"], row["ts"]) for row in table.rows(marker)]
        assert keys == sorted(keys)
    assert sorted(row["n"] for row in table.rows(*outputs)) == list(range(1000))


def test_units_that_disagree_about_a_new_column_settle_as_one_unit_would(spark, table):
    batches = [
        table.stage({"ts": 0, "x": 1}),
        table.stage({"ts": 0, "x": 1.5, "Name": "a"}),
        table.stage({"ts": 0, "x": "text"}),
        table.stage({"ts": 0, "name": "b"}),
        table.stage({"ts": 0, "x": 3}),
    ]
    outputs = [
        table.writer(spark, SMALL_UNITS, direct_bytes).write_batches(table.flush_job(*batches))
        for direct_bytes in (0, 10**9)
    ]
    for output in outputs:
        assert output.schema == {"ts": "TIMESTAMP", "x": "DOUBLE", "Name": "VARCHAR"}
        assert output.accepted == (batches[0], batches[1], batches[4])
        assert [rejected.batch for rejected in output.rejected] == [batches[2], batches[3]]
        assert "column 'x' is DOUBLE" in output.rejected[0].reason
        assert "columns 'Name' and 'name' differ only in case" in output.rejected[1].reason
        assert sorted(row["x"] for row in table.rows(*output.files)) == [1.0, 1.5, 3.0]


def no_files():
    raise AssertionError("no data file is needed: the log says it")


def test_a_column_becomes_wider_if_the_live_files_allow_it_and_bad_rows_stay_out(spark, table):
    widening = {"evolution": "widen", "on_bad_rows": "quarantine_rows"}
    config = TableConfig.create(name="events", sort=("ts",), declared={"ts": "TIMESTAMP"}, **widening)
    known = {"ts": "TIMESTAMP", "n": "BIGINT", "m": "BIGINT"}
    writer = table.writer(spark, direct_bytes=10**9)
    live = writer.write_batches(
        table.flush_job(table.stage({"ts": 0, "n": 1, "m": 2**53 + 1}), schema=known, config=config)
    )
    batches = [
        table.stage({"ts": 0, "n": 2}),
        table.stage({"ts": 0, "n": 0.5}, {"ts": "soon"}),
        table.stage({"ts": 0, "m": 0.5}),
        table.stage({"ts": 0, "n": 2**53 + 1}),
    ]
    for direct_bytes in (0, 10**9):
        job = table.flush_job(*batches, schema=known, config=config)
        job = replace(job, read_live=lambda: live.files)
        output = table.writer(spark, SMALL_UNITS, direct_bytes).write_batches(job)
        assert output.schema == {"ts": "TIMESTAMP", "n": "DOUBLE", "m": "BIGINT"}
        assert output.accepted == (batches[0], batches[1])
        assert sorted(row["n"] for row in table.rows(*output.files)) == [0.5, 2.0]
        (left_out,) = output.bad_rows
        assert (left_out.batch, left_out.row_count) == (batches[1], 1)
        assert table.store.head(left_out.payload_key).size_bytes
        reasons = [rejected.reason for rejected in output.rejected]
        assert "column 'm' is BIGINT" in reasons[0]
        assert "which DOUBLE cannot hold exactly" in reasons[0]
        assert "column 'n' is DOUBLE" in reasons[1]
        assert output.inexact == ("m",), "what was found out is for the commit to say"
        assert [marker.inexact for marker in output.files] == [()]
    assert [marker.inexact for marker in live.files] == [("m",)]
    job = replace(table.flush_job(*batches, schema=known, config=config), inexact={"m": True}, read_live=no_files)
    output = table.writer(spark, SMALL_UNITS, direct_bytes=10**9).write_batches(job)
    assert output.schema == {"ts": "TIMESTAMP", "n": "DOUBLE", "m": "BIGINT"}


def test_what_one_unit_leaves_is_read_in_a_later_round_or_commit(spark, table):
    limits = FlushUnitLimits(unit_decoded_bytes=1, unit_target_bytes=50)
    batches = tuple(table.stage({"ts": 0, "x": number}) for number in range(3))
    spread = table.writer(spark, limits).write_batches(table.flush_job(*batches))
    assert spread.accepted == batches
    assert sorted(row["x"] for row in table.rows(*spread.files)) == [0, 1, 2]
    direct = table.writer(spark, limits, direct_bytes=10**9).write_batches(table.flush_job(*batches))
    assert (direct.accepted, direct.deferred) == (batches[:1], batches[1:])


@pytest.mark.parametrize("direct_bytes", [0, 10**9])
def test_a_commit_takes_no_more_partitions_than_it_may(spark, table, direct_bytes):
    config = CONFIG.model_copy(update={"max_partitions_per_flush": 3})
    limits = FlushUnitLimits(unit_target_bytes=120)  # two batches a unit
    waiting = [
        table.stage(*({"ts": f"2023-06-{day:02d}", "n": day} for day in days))
        for days in ([1, 2], [2, 3], [3], [1, 4], [9], [], [1, 2, 3, 4, 5], [5])
    ]
    commits = []
    while waiting:
        output = table.writer(spark, limits, direct_bytes).write_batches(table.flush_job(*waiting, config=config))
        partitions = {table.paths.partition_of(marker.path) for marker in output.files}
        assert len(output.files) == len(partitions)
        commits.append([len(output.accepted), len(partitions), output.row_count])
        assert {*output.accepted, *output.deferred} == {*waiting}
        waiting = list(output.deferred)
    assert commits == [[4, 3, 5], [2, 3, 3], [1, 5, 5], [1, 1, 1]]


def count_work(spark, work):
    """Return what a piece of work gave, and how many tasks each stage of each of its Spark jobs had."""
    context, groups = spark.sparkContext, []
    set_group = context.setJobGroup

    def note_group(group, *args, **kwargs):
        groups.append(group)
        set_group(group, *args, **kwargs)

    context.setJobGroup = note_group
    try:
        done = work()
    finally:
        del context.setJobGroup
    tracker = context.statusTracker()

    def find_jobs():
        jobs = [tracker.getJobInfo(job) for group in groups for job in tracker.getJobIdsForGroup(group)]
        return jobs if jobs and all(job is not None and job.status == "SUCCEEDED" for job in jobs) else None

    jobs = wait_until(find_jobs, "Spark tells of the jobs")
    return done, [[tracker.getStageInfo(stage).numTasks for stage in job.stageIds] for job in jobs]


def test_a_merge_and_a_small_flush_are_one_spark_job_of_one_stage(spark, table):
    merger = MergeDriver(SparkRunner(spark, table.settings), clock=CLOCK, limits=table.limits())
    writer, batches = table.writer(spark, direct_bytes=10**9), [table.stage(*events(n)) for n in range(2)]
    flushes, queries = [], count_queries(spark)
    for number, batch in enumerate(batches):
        job = table.flush_job(batch)
        flushed, stages = count_work(spark, lambda job=job: writer.write_batches(job))
        assert stages == [[1]]
        flushes.append(flushed)
    partitions = {table.paths.partition_of(marker.path) for marker in flushes[0].files}
    groups = [
        MergeGroup(partition, tuple(m for each in flushes for m in each.files if f"/{partition}/" in m.path))
        for partition in partitions
    ]
    merged, stages = count_work(spark, lambda: merger.merge_groups(table.merge_job(*groups, schema=flushes[0].schema)))
    assert sum(group.rows_read for group in merged) == 400
    assert stages == [[len(groups)]], "a task for each group, and nothing before it"
    assert count_queries(spark) == queries, "to plan one takes longer than a small flush"


def count_queries(spark):
    """Return how many queries and plans of DataFrames were run on a session."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return spark._jsparkSession.sharedState().statusStore().executionsCount()


def test_units_run_in_the_processes_of_dataframes_one_after_the_other(spark, table):
    def tell(chunks):
        for _ in chunks:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    runner, units = SparkRunner(spark, table.settings), TaskUnits.of(["a unit"])
    rows = [runner.collect(lambda _: (os.getppid(), os.getpid()), units)[0] for _ in range(8)]
    daemons, processes = map(set, zip(*rows, strict=True))
    assert len(processes) < len(rows), "each ended with its task"
    assert daemons == {row["pid"] for row in spark.range(0, 1, 1, 1).mapInArrow(tell, "pid BIGINT").collect()}


def test_after_its_first_unit_a_process_searches_its_modules_for_cycles_no_more(spark, table):
    batch = table.stage(*events(0))
    options = {"schema": {}, "batches": (batch,), "limits": FlushUnitLimits()}
    unit = FlushUnit.of(table.flush_job(batch), table.limits().engine, **options)
    run = make_task("flush", table.settings, TaskUnits.of([encode(unit)]))

    def count_what_is_kept(number):
        assert run(number)["outcome"] == "ok"
        return gc.get_freeze_count()

    (count,) = spark.sparkContext.parallelize([0], 1).map(count_what_is_kept).collect()
    assert count > 10_000


def test_an_error_in_a_task_arrives_as_ours(spark, table):
    writer = FlushDriver(SparkRunner(spark, table.settings), clock=CLOCK, limits=table.limits())
    merger = MergeDriver(SparkRunner(spark, table.settings), clock=CLOCK, limits=table.limits())
    flushed = writer.write_batches(table.flush_job(table.stage(*events(0)), table.stage(*events(1))))
    (first, *_) = flushed.files
    group = MergeGroup(table.paths.partition_of(first.path), (first,))
    with pytest.raises(SchemaConflict, match=r"column 'n' is BIGINT in data file .*VARCHAR"):
        merger.merge_groups(table.merge_job(group, schema={**flushed.schema, "n": "VARCHAR"}))
    table.store.delete([first.path])
    with pytest.raises(NotFound, match="is live but gone from the store"):
        merger.merge_groups(table.merge_job(group, schema=flushed.schema))


def test_a_declared_type_that_the_log_contradicts_halts(spark, table):
    writer = FlushDriver(SparkRunner(spark, table.settings), clock=CLOCK, limits=table.limits())
    with pytest.raises(SchemaConflict, match=r"declares 'ts' as TIMESTAMP, but the log has 'ts' as VARCHAR"):
        writer.write_batches(table.flush_job(table.stage({"ts": 0}), schema={"ts": "VARCHAR"}))


def test_two_jobs_share_a_session(spark, table):
    writer = FlushDriver(SparkRunner(spark, table.settings), clock=CLOCK, limits=table.limits())
    jobs = [table.flush_job(table.stage(*events(number))) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert [output.row_count for output in pool.map(writer.write_batches, jobs)] == [200, 200]


def test_the_session_is_alive_and_shared(spark):
    assert is_session_alive(spark)
    assert open_spark() is spark
