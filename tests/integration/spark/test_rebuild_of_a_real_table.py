"""The log of a table that the real data path wrote is destroyed, made anew by ``icedb rebuild``, and has the same rows."""

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from icedb.cli.app import run
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_log.changes.row_changes import delete_rows
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

pytestmark = pytest.mark.spark

STRICT_READER = Path(__file__).parents[2] / "compat" / "strict_reader.py"
CLOCK = SystemClock()
CONFIG = TableConfig.create(
    name="events",
    partition=(PartitionField.parse("d=day(ts)"), PartitionField.parse("place")),
    sort=("event", "ts"),
    merge_fan_in=2,
)
PLACES = ("São Paulo/%", "a+b c")


class RealTable(TableStore):
    """A table on a directory, written by Spark."""

    def __init__(self, spark, folder):
        self.root = folder / "store"
        settings = StoreSettings(f"file://{self.root}")
        warehouse = settings.open()
        self.store, self.paths = warehouse.store, warehouse.table("events").paths
        create_table(TableStore(self.store, self.paths), CONFIG)
        self.writer = FlushDriver(SparkRunner(spark, settings), clock=CLOCK)
        self.changer = MergeDriver(SparkRunner(spark, settings), clock=CLOCK)

    def flush(self, first, count):
        rows = [
            {
                "ts": f"2023-06-{7 + n % 2:02d}T12:00:{n % 60:02d}Z",
                "place": PLACES[n % 2],
                "event": f"e{n % 5}",
                "id": n,
            }
            for n in range(first, first + count)
        ]
        body = "\n".join(json.dumps(row) for row in rows).encode()
        stage_batch(
            TableStore(self.store, self.paths), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK)
        )
        assert (
            flush_table(
                Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test"), self.writer
            ).row_count
            == count
        )

    def merge(self):
        merge_table(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test"),
            self.changer,
            options=MergeOptions(full=True),
        )

    def snapshot(self):
        return fold(LogReader(TableStore(self.store, self.paths), clock=CLOCK).read())

    def rows(self):
        files = [str(self.root / marker.path) for marker in self.snapshot().live]
        query = "select * from read_parquet($files, union_by_name=true, hive_partitioning=false)"
        return sorted(duckdb.execute(query, {"files": files}).fetchall(), key=str)


def test_rows_are_the_same_when_the_log_was_destroyed(spark, tmp_path, capsys):
    table = RealTable(spark, tmp_path)
    table.flush(0, 60)
    table.flush(60, 60)
    table.merge()
    delete_rows(Table.open(table, clock=CLOCK, owner="test"), table.changer, "id % 10 = 3")
    table.flush(120, 30)
    rows, before = table.rows(), table.snapshot()
    assert len(rows) == 138

    for path in (table.root / table.paths.log_prefix).iterdir():
        path.unlink()
    assert table.snapshot().live == ()

    url = f"file://{table.root}"
    capsys.readouterr()
    assert run(["--store", url, "rebuild", "events", "--yes", "--take", "*", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["taken_rows"], {each["kind"] for each in plan["candidates"]}) == (138, {"delete", "flush", "merge"})
    after = table.snapshot()
    assert table.rows() == rows
    # Everything that planners go by is there again: sizes, rows, statistics of sort columns.
    assert {m.path: (m.size_bytes, m.row_count, m.stats) for m in after.live} == {
        m.path: (m.size_bytes, m.row_count, m.stats) for m in before.live
    }
    assert dict(after.schema) == dict(before.schema)

    strict = subprocess.run(
        [sys.executable, str(STRICT_READER), str(table.root), table.paths.prefix],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(strict.stdout)["rows"] == 138
    table.merge()  # the table lives on
    assert table.rows() == rows


def test_a_lost_log_file_is_found_and_its_rows_come_back(spark, tmp_path, capsys):
    table = RealTable(spark, tmp_path)
    for first in range(0, 80, 20):
        table.flush(first, 20)
    rows, url = table.rows(), f"file://{table.root}"
    assert run(["--store", url, "fsck", "events"]) == 0
    lost = sorted((table.root / table.paths.log_prefix).iterdir())[1]
    lost.unlink()
    assert len(table.rows()) == 60

    capsys.readouterr()
    assert run(["--store", url, "fsck", "events", "-o", "json"]) == 1
    text = capsys.readouterr().out
    (report,) = json.loads(text)["tables"]
    (finding,) = [each for each in report["findings"] if each["severity"] == "error"]
    assert (finding["code"], finding["key"].rpartition("/")[2]) == ("commit-lost", lost.name)
    assert "icedb rebuild" in text
    assert run(["--store", url, "rebuild", "events", "--yes", "--take", "*"]) == 0
    assert table.rows() == rows
    capsys.readouterr()
    assert run(["--store", url, "fsck", "events", "--deep"]) == 0, capsys.readouterr().out
