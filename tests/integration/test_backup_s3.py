"""Copies between buckets and folders, and what docs/backup.md does in a versioned bucket after everything was deleted."""

import json
import re
import sys
from pathlib import Path

import boto3
import pytest
from client_rig import cli_env, run_icedb  # noqa: F401 - fixtures
from icedb import connect

pytestmark = pytest.mark.s3

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
ROW = '{"ts": "2026-01-02T03:04:05Z", "n": 1}\n'


@pytest.fixture
def s3(cli_env, s3_server):  # noqa: F811 - the fixture
    settings = {
        "AWS_ACCESS_KEY_ID": "dev",
        "AWS_SECRET_ACCESS_KEY": "dev",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
        "ICEDB_S3_ENDPOINT": s3_server.endpoint_url,
    }
    for name, value in settings.items():
        cli_env.setenv(name, value)
    client = boto3.client("s3")
    for bucket in ("prod", "backups", "elsewhere"):
        client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket="backups", VersioningConfiguration={"Status": "Enabled"})
    cli_env.setenv("ICEDB_STORE", "s3://prod/lake")
    return client


def count(store):
    with connect(store) as lake:
        return lake.query("select count(*) from events").fetchall()


def test_a_warehouse_goes_through_buckets_and_folders_and_comes_back_when_all_is_deleted(
    s3,
    run_icedb,  # noqa: F811 - the fixture
    tmp_path,
    monkeypatch,
):
    rows = tmp_path / "rows.ndjson"
    rows.write_text(ROW)
    run_icedb("table", "create", "events", "--partition", "d=day(ts)", "--sort", "ts")
    for _ in range(3):
        run_icedb("ingest", "events", str(rows), "--commit")
    run_icedb("merge", "events", "--full", "--local")
    said = json.loads(run_icedb("backup", "s3://backups/lake", "-o", "json"))
    assert [(each["table"], each["row_count"], each["problem"]) for each in said["tables"]] == [("events", 3, "")]
    assert "needs 'lake'" in run_icedb("backup", "s3://backups/other", code=2)
    assert "the store itself" in run_icedb("backup", "s3://prod/lake", code=2)
    run_icedb("--store", str(tmp_path / "own"), "table", "create", "local")
    assert "the bucket alone" in run_icedb("--store", str(tmp_path / "own"), "backup", "s3://elsewhere/own", code=2)
    run_icedb("--store", "s3://backups/lake", "backup", str(tmp_path / "folder"))
    run_icedb("--store", str(tmp_path / "folder"), "backup", "s3://elsewhere/lake")
    assert count("s3://backups/lake") == count("s3://elsewhere/lake") == [(3,)]
    assert "was written to" in _write_and_copy(run_icedb, rows)

    run_icedb("--store", "s3://backups/lake", "merge", "events", "--full", "--local")
    # A versioned bucket: the janitor has deleted a log file that was merged, then somebody deletes everything.
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket="backups", Prefix="lake/events/")["Contents"]]
    dead = min(key for key in keys if "/_log/" in key)
    audit = f"{json.dumps({'kind': 'vacuum'})}\n{json.dumps({'key': dead, 'outcome': 'deleted'})}"
    s3.put_object(Bucket="backups", Key="lake/events/_icedb/audit/1700000000000_ab.jsonl", Body=audit.encode())
    s3.delete_object(Bucket="backups", Key=dead)
    for each in s3.list_objects_v2(Bucket="backups", Prefix="lake/events/")["Contents"]:
        s3.delete_object(Bucket="backups", Key=each["Key"])
    monkeypatch.setattr(sys, "argv", ["undelete", "backups", "lake/events", "2000-01-01T00:00:00"])
    (script,) = re.findall(r"<!-- run: undelete -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(script, str(PAGE), "exec"), {})
    run_icedb("--store", "s3://backups/lake", "fsck", "events", "--deep")
    assert count("s3://backups/lake") == [(4,)]
    left = {each["Key"] for each in s3.list_objects_v2(Bucket="backups", Prefix="lake/events/_log/")["Contents"]}
    assert dead not in left


def _write_and_copy(run_icedb, rows):  # noqa: F811 - the fixture
    run_icedb("--store", "s3://backups/lake", "ingest", "events", str(rows), "--commit")
    return run_icedb("backup", "s3://backups/lake", code=1)
