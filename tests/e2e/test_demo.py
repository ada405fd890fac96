"""The demo itself, small, on both stores: exit status, its own checks, and nothing left running."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from icedb_local.generator import EventGenerator

pytestmark = [pytest.mark.e2e, pytest.mark.spark]


def run_demo(tmp_path, *arguments):
    env = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, "-m", "icedb_local.demo", "--json", *arguments],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def check_report(done, *, row_count, table_count):
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["events"] == row_count
    moments = [count["moment"] for count in report["counts"] if count["table"] == "events"]
    assert moments == ["before", "at 25 %", "at 50 %", "at 75 %", "all in", "after cleanup"]
    last = report["counts"][-table_count]
    assert last["table"] == "events"
    assert last["counted_rows"] == last["acknowledged_rows"] == row_count
    names = {check["name"] for check in report["checks"]}
    for table in ("events", "events_by_user")[:table_count]:
        assert f"{table}: nothing dead is left in the store" in names
        assert f"{table}: as few files as the target size allows" in names
    assert "events: merges run while events come in" in names
    return report


@pytest.mark.soak  # what it does beyond the next one is done by the tests that kill workers
def test_made_up_events_on_a_directory(tmp_path, find_processes):
    done = run_demo(tmp_path, "--events", "40000", "--batches", "32")
    report = check_report(done, row_count=40_000, table_count=2)
    by_user = [count for count in report["counts"] if count["table"] == "events_by_user"][-1]
    assert by_user["counted_rows"] == 10_000
    assert max(sample["data_files"] for sample in report["samples"]["events"]) > by_user["file_count"] / 4
    assert find_processes(tmp_path) == {}
    assert list(tmp_path.iterdir()) == [], "the run folder is gone"


@pytest.mark.parametrize("store", ["local", pytest.param("s3", marks=pytest.mark.soak)])
def test_a_users_own_file(tmp_path, find_processes, store):
    path = tmp_path / "mine.ndjson.gz"
    bodies = [batch.body.replace(b'"ts":', b'"at":') for batch in EventGenerator(8_000, 4, seed=7).batches()]
    path.write_bytes(gzip.compress(b"".join(bodies)))
    done = run_demo(tmp_path, "--store", store, "--input", str(path), "--ts-column", "at")
    report = check_report(done, row_count=8_000, table_count=2)
    assert report["store"] == store
    assert find_processes(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "nowhere.ndjson"], "not a file"),
        (["--events", "3", "--batches", "9"], "at least one event"),
        (["--store", "ftp"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_one_message_and_start_nothing(tmp_path, arguments, words):
    done = run_demo(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
