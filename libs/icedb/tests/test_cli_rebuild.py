"""``icedb rebuild`` on real Parquet files: what it shows, what it asks, and that rows are there again."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb.cli.app import run as run_command
from icedb_log.clock import SystemClock
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

CLOCK = SystemClock()


def write_file(table, rows, *, kind="flush", inputs=(), commit_id=None):
    """Write a data file as the data path does."""
    footer = {
        "icedb.format": "1",
        "icedb.table": "events",
        "icedb.partition": "event=click",
        "icedb.commit": commit_id or CLOCK.new_id(),
        "icedb.kind": kind,
    }
    if kind != "flush":
        footer["icedb.inputs"] = json.dumps(list(inputs))
    key = table.paths.data_key(partition="event=click", file_id=CLOCK.new_id())
    path = table.root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table({"id": pa.array(rows, pa.int64()), "event": ["click"] * len(rows)})
    with pq.ParquetWriter(path, data.schema) as writer:
        writer.write_table(data)
        writer.add_key_value_metadata(footer)
    return key


class Place:
    """A table without any log file."""

    def __init__(self, folder):
        self.root = folder / "wh"
        self.warehouse = open_warehouse(f"file://{self.root}")
        self.paths = self.warehouse.table("events").paths
        partition = (PartitionField.parse("event"),)
        config = TableConfig.create(name="events", partition=partition, sort=("id",))
        create_table(self.warehouse.table("events"), config)

    def logs(self):
        folder = self.root / self.paths.log_prefix
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def place(tmp_path, cli_env):
    place = Place(tmp_path)
    cli_env.setenv("ICEDB_STORE", f"file://{place.root}")
    old = [write_file(place, [1, 2]), write_file(place, [3])]
    write_file(place, [1, 2, 3], kind="merge", inputs=old)
    write_file(place, [4])
    return place


def count_rows(run_icedb):
    found = json.loads(run_icedb("query", "SELECT count(*) AS n, sum(id) AS s FROM events", "-o", "json"))
    return found["rows"]


TAKE = ("--take", "*")


def test_rows_are_there_again(place, run_icedb):
    plan = json.loads(run_icedb("rebuild", "events", *TAKE, "--yes", "-o", "json"))
    assert (plan["committed"], len(plan["candidates"]), plan["taken_rows"], plan["dead_files"]) == (True, 2, 4, 2)
    assert count_rows(run_icedb) == [{"n": 4, "s": 10}]
    assert json.loads(run_icedb("fsck", "events", "--deep", "-o", "json"))["sound"]
    again = json.loads(run_icedb("rebuild", "events", *TAKE, "--yes", "-o", "json"))
    assert (again["committed"], again["damage"], again["live_rows"]) == (False, [], 4)
    assert len(place.logs()) == 1


def test_a_dry_run_prints_the_plan(place, run_icedb):
    text = run_icedb("rebuild", "events", "--dry-run")
    for line in (
        r"live, certain\s+0\s+0",
        r"waiting for --take or --leave\s+2\s+4",
        r"dead\s+2\s+3",
        r"waiting\s+merge\s+\w+\s+event=click\s+1\s+3\s+3 rows",
    ):
        assert re.search(line, text), text
    assert place.logs() == []


def test_nobody_can_be_asked(place, run_icedb):
    assert "--yes" in run_icedb("rebuild", "events", *TAKE, code=2)
    assert "--yes" in run_icedb("rebuild", "events", *TAKE, "-o", "json", code=2)
    assert place.logs() == []


def test_each_file_is_taken_or_left_before_anything_is_written(place, run_icedb):
    assert "--take GLOB or --leave GLOB" in run_icedb("rebuild", "events", "--yes", code=2)
    plan = json.loads(run_icedb("rebuild", "events", "-o", "json", "--dry-run"))
    merge = next(each for each in plan["candidates"] if each["kind"] == "merge")
    text = run_icedb("rebuild", "events", *TAKE, "--leave", merge["commit_id"], "--dry-run")
    assert re.search(r"left\s+1\s+3", text), text
    assert re.search(r"live, taken\s+3\s+4", text), text
    assert place.logs() == []


def test_a_sound_table_is_left_alone(place, run_icedb):
    run_icedb("rebuild", "events", *TAKE, "--yes")
    logs = place.logs()
    assert "nothing to rebuild" in run_icedb("rebuild", "events", "--yes")
    assert place.logs() == logs


def test_the_new_log_file_is_named_by_its_whole_key(place, capfdbinary):
    assert run_command(("rebuild", "events", *TAKE, "--yes")) == 0
    assert place.paths.log_prefix.encode() in capfdbinary.readouterr().err
