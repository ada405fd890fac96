"""Damaged data files, through the worker's own runner, on real Parquet: the table halts, says why, and others go on."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.limits import EngineLimits
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
from icedb_log.jobs import MergedGroup
from icedb_log.names import MERGE_MERGE
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import MergeTasks
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.task_context import MemoryContext

TABLES = ("bad", "good")
SCHEMA = {"n": "BIGINT"}


class UnitMerger:
    """Runs merge units here, as Spark's tasks do there."""

    def __init__(self, context, scratch):
        self._context = context
        self._engine = EngineLimits(thread_count=1, scratch_folder=str(scratch))

    def merge_groups(self, job):
        merged = []
        for group in job.groups:
            unit = MergeUnit.of(job, self._engine, group=group)
            result = merge_unit(unit, self._context.warehouse.store, clock=self._context.clock)
            merged.append(MergedGroup(group, result.outputs, result.rows_read))
        return tuple(merged)


@pytest.fixture
def context(tmp_path):
    context = MemoryContext(MergeMetrics())
    context.engine.merger = UnitMerger(context, tmp_path / "scratch")
    parquet = ParquetWarehouse(context.warehouse)
    for table in TABLES:
        parquet.create(table, sort=("n",), merge_fan_in=2)
        for number in range(4):
            select = f"SELECT {number} + i * 4 AS n FROM range(1000) t(i)"
            parquet.commit(table, select, schema=SCHEMA, time_ms=context.clock.now_ms())
            context.clock.advance(1000)
    yield context
    assert list(tmp_path.glob("scratch/*")) == [], "a unit left its scratch folder behind"


def run(context, table):
    tasks = MergeTasks(context, settings=MergerSettings(store="file:///tmp/w"), metrics=context.metrics)
    return context.runner.run(lambda: tasks.merge(table, full=True), task=MERGE_MERGE, task_id="1", table=table)


def live(context, table):
    return context.snapshot(table).live


def delete(store, key, body):
    store.delete([key])


def truncate(store, key, body):
    store.put(key, body[: len(body) // 2])


def change_schema(store, key, body):
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": ["text"]}), sink)
    store.put(key, sink.getvalue())


@pytest.mark.parametrize(
    ("damage", "kind", "reason"),
    [
        (delete, "CorruptLog", "is live but gone"),
        (truncate, "CorruptLog", "not readable as Parquet"),
        (change_schema, "SchemaConflict", "column 'n' is VARCHAR"),
    ],
)
def test_a_damaged_data_file_halts_its_table_names_itself_and_lets_others_go_on(context, damage, kind, reason):
    store = context.warehouse.store
    before = live(context, "bad")
    key = before[1].path
    body = store.get(key).body
    damage(store, key, body)
    stopped = run(context, "bad")
    assert (stopped["outcome"], stopped["error"]["kind"]) == ("halted", kind)
    assert key in stopped["error"]["message"]
    assert reason in stopped["error"]["message"]
    assert context.metric("icedb_merge_halted", table="bad") == 1
    assert live(context, "bad") == before
    assert run(context, "good")["outcome"] == "done"
    assert len(live(context, "good")) == 1
    assert context.metric("icedb_merge_halted", table="good") == 0

    store.put(key, body)  # a person restores the object
    assert run(context, "bad")["outcome"] == "done"
    assert context.metric("icedb_merge_halted", table="bad") == 0
    assert sum(marker.row_count for marker in live(context, "bad")) == 4000
