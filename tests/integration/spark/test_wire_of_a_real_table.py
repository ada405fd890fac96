"""A table written by the real data path on a directory is read alike by a strict reader of the wire rules."""

import json
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from waiting import LIMIT_S

pytestmark = pytest.mark.spark

STRICT_READER = Path(__file__).parents[2] / "compat" / "strict_reader.py"
CLOCK = SystemClock()
CONFIG = TableConfig.create(
    name="events",
    partition=(PartitionField.parse("d=day(ts)"), PartitionField.parse("where=place")),
    sort=("event", "ts"),
    merge_fan_in=2,
    log_grace_ms=3000,  # three quarters of it is the time between a batch's id and its staging
    data_grace_ms=3000,
)
PLACES = ("São Paulo/%", "a+b c", "")


def read_strictly(root, prefix):
    command = [sys.executable, str(STRICT_READER), str(root), prefix]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def make_rows(first, count, **columns):
    return [
        {
            "ts": f"2023-06-{7 + n % 2:02d}T12:00:{n % 60:02d}Z",
            "place": PLACES[n % 3],
            "event": f"e{n % 5}",
            "id": n,
            **columns,
        }
        for n in range(first, first + count)
    ]


def test_a_real_table_is_read_alike_after_each_step(spark, tmp_path):
    root = tmp_path / "store"
    settings = StoreSettings(f"file://{root}")
    warehouse = settings.open()
    store, paths = warehouse.store, warehouse.table("events").paths
    create_table(TableStore(store, paths), CONFIG)
    writer = FlushDriver(SparkRunner(spark, settings), clock=CLOCK)
    merger = MergeDriver(SparkRunner(spark, settings), clock=CLOCK)

    def check(row_count):
        strict = read_strictly(root, paths.prefix)
        snapshot = fold(LogReader(TableStore(store, paths), clock=CLOCK).read())
        assert strict["live"] == [marker.path for marker in snapshot.live]
        assert strict["schema"] == dict(snapshot.schema)
        assert strict["rows"] == row_count
        files = [str(root / path) for path in strict["live"]]
        query = (
            "select count(*), count(distinct id) from read_parquet($files, union_by_name=true, hive_partitioning=false)"
        )
        assert duckdb.execute(query, {"files": files}).fetchone() == (row_count, row_count)
        report = fsck_table(TableStore(store, paths), clock=CLOCK, options=FsckOptions(ParquetFooterReader(store)))
        assert [each for each in report.findings if each.severity != "note"] == []
        assert report.figures["footers"] == len(strict["live"])

    def stage_and_flush(*batches):
        for rows in batches:
            body = "\n".join(json.dumps(row) for row in rows).encode()
            stage_batch(TableStore(store, paths), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))
        result = flush_table(Table.open(TableStore(store, paths), clock=CLOCK, owner="test"), writer)
        assert (result.rejected, result.batch_count) == ((), len(batches))

    stage_and_flush(make_rows(0, 100), make_rows(100, 100))
    check(200)
    stage_and_flush(make_rows(200, 100, later=1.5))
    check(300)
    assert merge_table(Table.open(TableStore(store, paths), clock=CLOCK, owner="test"), merger).row_count == 300
    check(300)
    stage_and_flush(make_rows(300, 50))
    assert (
        merge_table(
            Table.open(TableStore(store, paths), clock=CLOCK, owner="test"), merger, options=MergeOptions(full=True)
        ).row_count
        == 350
    )
    check(350)
    deadline = time.monotonic() + LIMIT_S
    while vacuum_table(Table.open(TableStore(store, paths), clock=CLOCK)).waiting:
        assert time.monotonic() < deadline, "the vacuum does not come to an end"
        CLOCK.sleep_ms(100)
    check(350)
    assert len(list((root / paths.log_prefix).iterdir())) == 1
