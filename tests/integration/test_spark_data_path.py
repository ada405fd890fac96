"""Flush and merge through a real Spark session on a directory store."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import NotFound, SchemaConflict
from icedb_log.jobs import BatchWriter, FlushJob, GroupMerger, MergeGroup, MergeJob, StagedBatch
from icedb_log.stores import StoreSettings
from icedb_log.table_config import PartitionField, TableConfig
from icedb_parts.limits import EngineLimits, FlushUnitLimits
from icedb_parts.spark_jobs import JobLimits, SparkBatchWriter, SparkGroupMerger
from icedb_parts.spark_session import is_session_alive, open_spark

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
CONFIG = TableConfig.create(
    name="events", partition=(PartitionField.parse("d=day(ts)"),), sort=("event", "ts"), row_group_rows=2048
)
SMALL_UNITS = FlushUnitLimits(unit_target_bytes=1)
"""Each batch becomes a unit of its own."""


class Table:
    def __init__(self, folder):
        self.settings = StoreSettings(f"file://{folder}/store")
        warehouse = self.settings.open()
        self.store, self.paths = warehouse.store, warehouse.table("events")
        self.scratch = folder / "scratch"

    def stage(self, *rows, body=None):
        body = body or "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        batch_id = new_batch_id(CLOCK)
        key = self.paths.staging_key(batch_id=batch_id, staging_format="ndjson")
        self.store.put(key, body)
        return StagedBatch(key, batch_id, "ndjson", len(body), 0)

    def limits(self, batch=None):
        return JobLimits(batch or FlushUnitLimits(), EngineLimits(scratch_folder=str(self.scratch)))

    def flush_job(self, *batches, schema=None, config=CONFIG):
        return FlushJob(self.paths, config, schema or {}, batches, "c0ffee", 1)

    def merge_job(self, *groups, schema):
        return MergeJob(self.paths, CONFIG, schema, groups, "c1", 2)

    def rows(self, *markers):
        return [
            row
            for marker in markers
            for row in pq.read_table(self.store.uri(marker.path), partitioning=None).to_pylist()
        ]


@pytest.fixture
def table(tmp_path):
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
    writer: BatchWriter = SparkBatchWriter(spark, table.settings, clock=CLOCK, limits=table.limits(SMALL_UNITS))
    merger: GroupMerger = SparkGroupMerger(spark, table.settings, clock=CLOCK, limits=table.limits())
    batches = [table.stage(*events(number)) for number in range(5)]
    gone = table.stage({"ts": 0})
    table.store.delete([gone.key])
    bad = table.stage(body=b"{oops\n")
    flushed = writer.write_batches(table.flush_job(*batches[:2], gone, bad, *batches[2:]))
    assert flushed.accepted == tuple(batches)
    assert flushed.missing == (gone,)
    assert [rejected.batch for rejected in flushed.rejected] == [bad]
    assert "line 1 is not a JSON object" in flushed.rejected[0].reason
    assert flushed.schema == {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT"}
    assert flushed.row_count == 1000
    assert sorted(row["n"] for row in table.rows(*flushed.files)) == list(range(1000))

    by_partition = {}
    for marker in sorted(flushed.files, key=lambda marker: marker.path):
        by_partition.setdefault(table.paths.partition_of(marker.path), []).append(marker)
    groups = [MergeGroup(partition, tuple(markers)) for partition, markers in by_partition.items()]
    merged = merger.merge_groups(table.merge_job(*groups, schema=flushed.schema))
    assert sorted((result.group for result in merged), key=lambda group: group.partition) == groups
    for result in merged:
        (output,) = result.outputs
        assert table.paths.partition_of(output.path) == result.group.partition
        assert result.rows_read == output.row_count == sum(marker.row_count for marker in result.group.inputs)
        keys = [(row["event"], row["ts"]) for row in table.rows(output)]
        assert keys == sorted(keys)
    assert sorted(row["n"] for result in merged for row in table.rows(*result.outputs)) == list(range(1000))


def test_units_that_disagree_about_a_new_column_settle_as_one_unit_would(spark, table):
    batches = [
        table.stage({"ts": 0, "x": 1}),
        table.stage({"ts": 0, "x": 1.5, "Name": "a"}),
        table.stage({"ts": 0, "x": "text"}),
        table.stage({"ts": 0, "name": "b"}),
        table.stage({"ts": 0, "x": 3}),
    ]
    outputs = [
        SparkBatchWriter(spark, table.settings, clock=CLOCK, limits=table.limits(limits)).write_batches(
            table.flush_job(*batches)
        )
        for limits in (SMALL_UNITS, FlushUnitLimits())
    ]
    for output in outputs:
        assert output.schema == {"ts": "TIMESTAMP", "x": "DOUBLE", "Name": "VARCHAR"}
        assert output.accepted == (batches[0], batches[1], batches[4])
        assert [rejected.batch for rejected in output.rejected] == [batches[2], batches[3]]
        assert "column 'x' is DOUBLE" in output.rejected[0].reason
        assert "columns 'Name' and 'name' differ only in case" in output.rejected[1].reason
        assert sorted(row["x"] for row in table.rows(*output.files)) == [1.0, 1.5, 3.0]


def test_batches_that_a_unit_defers_are_taken_in_a_later_round(spark, table):
    limits = FlushUnitLimits(unit_decoded_bytes=1)
    batches = [table.stage({"ts": 0, "x": number}) for number in range(3)]
    output = SparkBatchWriter(spark, table.settings, clock=CLOCK, limits=table.limits(limits)).write_batches(
        table.flush_job(*batches)
    )
    assert output.accepted == tuple(batches)
    assert sorted(row["x"] for row in table.rows(*output.files)) == [0, 1, 2]


def test_an_error_in_a_task_arrives_as_ours(spark, table):
    writer = SparkBatchWriter(spark, table.settings, clock=CLOCK, limits=table.limits())
    merger = SparkGroupMerger(spark, table.settings, clock=CLOCK, limits=table.limits())
    flushed = writer.write_batches(table.flush_job(table.stage(*events(0)), table.stage(*events(1))))
    (first, *_) = flushed.files
    group = MergeGroup(table.paths.partition_of(first.path), (first,))
    with pytest.raises(SchemaConflict, match=r"column 'n' is BIGINT in data file .*VARCHAR"):
        merger.merge_groups(table.merge_job(group, schema={**flushed.schema, "n": "VARCHAR"}))
    table.store.delete([first.path])
    with pytest.raises(NotFound, match="is live but gone from the store"):
        merger.merge_groups(table.merge_job(group, schema=flushed.schema))


def test_a_declared_type_that_the_log_contradicts_halts(spark, table):
    writer = SparkBatchWriter(spark, table.settings, clock=CLOCK, limits=table.limits())
    with pytest.raises(SchemaConflict, match=r"declares 'ts' as TIMESTAMP, but the log has 'ts' as VARCHAR"):
        writer.write_batches(table.flush_job(table.stage({"ts": 0}), schema={"ts": "VARCHAR"}))


def test_two_jobs_share_a_session(spark, table):
    writer = SparkBatchWriter(spark, table.settings, clock=CLOCK, limits=table.limits())
    jobs = [table.flush_job(table.stage(*events(number))) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert [output.row_count for output in pool.map(writer.write_batches, jobs)] == [200, 200]


def test_the_session_is_alive_and_shared(spark):
    assert is_session_alive(spark)
    assert open_spark() is spark
