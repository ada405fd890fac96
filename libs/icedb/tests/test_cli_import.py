"""What `icedb import` asks a worker for, and what it prints of the answer."""

import json

import pytest
from icedb.cli.ingest import to_url
from icedb_client.wakeups import TaskTimeout
from icedb_log.errors import InvalidRequest
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig

ANSWER = {
    "outcome": "done", "mode": "copy", "dry_run": False, "sources": 4, "commits": 1, "files": 2, "rows": 1234, "bytes": 2048,
    "unsorted": 2, "imported_before": 1, "empty": 0, "refused": 0, "reasons": [], "partition_count": 1,
    "partitions": [{"partition": "d=2026-01-01", "rows": 1234}],
}  # fmt: skip


@pytest.fixture
def asked(workers):
    workers[0] = dict(ANSWER)
    return workers


@pytest.fixture
def icedb(tmp_path, monkeypatch, said_by_icedb):
    url = f"file://{tmp_path}/warehouse"
    warehouse = open_warehouse(url)
    create_table(warehouse.table("events"), TableConfig.create(name="events"))
    monkeypatch.setenv("ICEDB_STORE", url)
    monkeypatch.chdir(tmp_path)

    return said_by_icedb


def test_a_worker_is_asked_with_urls_and_the_answer_is_a_table(icedb, asked, tmp_path):
    shown = icedb("import", "events", "s3://b/in/*.parquet", "in/**/*.parquet", "--timeout", "90s").out
    (task, table, arguments, timeout_ms) = asked[1]
    assert (task, table, timeout_ms) == ("icedb.ingest.import", "events", 90_000)
    assert arguments == {
        "sources": ["s3://b/in/*.parquet", f"file://{tmp_path}/in/**/*.parquet"],
        "mode": "copy", "partition": {}, "dry_run": False, "changed": False, "assume": None,
    }  # fmt: skip
    assert "files imported" in shown
    assert "1,234" in shown
    assert "2.0 KiB" in shown
    assert "d=2026-01-01" in shown


def test_every_option_reaches_the_worker(icedb, asked):
    options = (
        "--in-place",
        "--partition",
        "d=2026-01-01",
        "--partition",
        "u=a=b",
        "--changed",
        "--dry-run",
        "--assume",
        "lost",
    )
    asked[0] |= {"dry_run": True, "commits": 0}
    answer = icedb("import", "events", *options)
    assert asked[1][2] == {
        "sources": [], "mode": "in_place", "partition": {"d": "2026-01-01", "u": "a=b"}, "dry_run": True, "changed": True,
        "assume": "lost",
    }  # fmt: skip
    assert "would be imported" in answer.out
    assert "1 files were imported already" in answer.err


def test_refused_files_are_named_and_the_command_fails(icedb, asked):
    asked[0] |= {"refused": 30, "reasons": [{"file": f"s3://b/{n}", "reason": "it is bad"} for n in range(30)]}
    answer = icedb("import", "events", "s3://b/*", code=1)
    assert "s3://b/0 is refused: it is bad" in answer.err
    assert "30 files are refused" in answer.err
    document = json.loads(icedb("import", "events", "s3://b/*", "-o", "json", code=1).out)
    assert (document["refused"], len(document["reasons"])) == (30, 30)


def test_nothing_to_import_is_said(icedb, asked):
    asked[0] |= {"outcome": "idle", "files": 0, "partitions": [], "partition_count": 0, "imported_before": 7}
    answer = icedb("import", "events", "s3://b/*")
    assert "nothing to import" in answer.out
    assert "7 files were imported already" in answer.err


def test_an_error_of_the_worker_is_the_commands(icedb, asked):
    asked[0] = {"outcome": "not_found", "error": {"kind": "NotFound", "message": "matches no object"}}
    assert "matches no object" in icedb("import", "events", "s3://b/*", code=3).err
    asked[0] = TaskTimeout("no worker")
    assert "what is imported is not imported twice" in icedb("import", "events", "s3://b/*", code=6).err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "give the files to import"),
        (("http://b/x",), 2, "use s3://bucket"),
        (("s3://b/x", "--partition", "d"), 2, "write NAME=VALUE"),
        (("s3://b/x", "--partition", "d=1", "--partition", "d=2"), 2, "given twice"),
        (("s3://b/x", "--assume", "both"), 2, "is not one of 'landed', 'lost'"),
        (("s3://b/x", "--timeout", "soon"), 2, "not a duration"),
    ],
)
def test_what_is_wrong_is_said_before_a_worker_is_asked(icedb, asked, arguments, code, words):
    assert words in icedb("import", "events", *arguments, code=code).err
    assert len(asked) == 1
    assert "does not exist" in icedb("import", "nowhere", "s3://b/x", code=3).err


def test_a_path_is_one_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert to_url("folder") == to_url("./folder/") == f"file://{tmp_path}/folder/"
    assert to_url("../x/*.parquet") == f"file://{tmp_path.parent}/x/*.parquet"
    with pytest.raises(InvalidRequest):
        to_url("/x.parquet")
