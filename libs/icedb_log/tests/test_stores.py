"""Store URLs: what each opens, and the message of each that opens nothing."""

import pickle

import pytest
from botocore.loaders import JSONFileLoader
from icedb_log.errors import InvalidRequest
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.s3_client import make_clients
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings, open_warehouse


def test_a_directory(tmp_path):
    warehouse = open_warehouse(f"file://{tmp_path}/a%20b/w")
    assert isinstance(warehouse.store, LocalObjectStore)
    assert warehouse.root == ""
    warehouse.store.put(warehouse.table("events").paths.config_key, b"{}")
    assert (tmp_path / "a b/w/events/_icedb/table.json").read_bytes() == b"{}"
    assert warehouse.list_tables() == ("events",)
    assert open_warehouse(f"file://localhost{tmp_path}/a%20b/w").list_tables() == ("events",)


@pytest.mark.parametrize(
    ("url", "root", "uri"),
    [
        ("s3://bucket", "", "s3://bucket/events/_icedb/table.json"),
        ("s3://bucket/", "", "s3://bucket/events/_icedb/table.json"),
        ("s3://my.bucket-1/a/b/", "a/b", "s3://my.bucket-1/a/b/events/_icedb/table.json"),
    ],
)
def test_a_bucket(url, root, uri):
    warehouse = open_warehouse(url, S3Options("http://127.0.0.1:1"))
    assert isinstance(warehouse.store, S3ObjectStore)
    assert warehouse.root == root
    assert warehouse.store.uri(warehouse.first("events").paths.config_key) == uri


def test_settings_travel_and_open_the_same_warehouse(tmp_path):
    settings = StoreSettings(f"file://{tmp_path}", S3Options("http://h", access_key_id="a", secret_access_key="hush"))
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert "hush" not in repr(copy)
    copy.open().store.put("key", b"x")
    assert settings.open().store.get("key").body == b"x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/var/data",
        "relative",
        "file:relative",
        "file://host/dir",
        "file://relative/dir",
        "file:///",
        "file:///a%00b",
        "file:///a?b",
        "s3:/bucket",
        "s3://",
        "s3:///key",
        "s3://Bucket",
        "s3://b",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a?versionId=1",
        "s3://bucket:80/a",
        "s3://[",
        "gs://bucket/a",
        "http://127.0.0.1:9000/bucket",
    ],
)
def test_anything_else_is_refused_with_the_forms_that_are_not(url):
    with pytest.raises(InvalidRequest) as caught:
        open_warehouse(url)
    message = str(caught.value)
    assert "file:///absolute/directory" in message or "components" in message
    assert "store URL" in message


def test_a_url_with_a_secret_is_not_shown():
    with pytest.raises(InvalidRequest) as caught:
        open_warehouse("s3://key:hush@bucket/a")
    assert "hush" not in str(caught.value)
    assert "AWS_SECRET_ACCESS_KEY" in str(caught.value)


def test_a_process_parses_what_s3_is_once_however_many_stores_it_opens(monkeypatch):
    parsed = []
    monkeypatch.setattr(
        JSONFileLoader,
        "_load_file",
        lambda self, *name, _load=JSONFileLoader._load_file: parsed.append(name) or _load(self, *name),
    )
    options = S3Options("http://127.0.0.1:1", access_key_id="k", secret_access_key="s")
    for bucket in ("one", "two"):
        before = len(parsed)
        make_clients(bucket, options, where=bucket, on_answer=lambda **_: None)
    assert parsed[before:] == []
