"""``icedb iceberg``, and ``LakeTable.publish``."""

import json
import sys

import pytest
from icedb import connect
from icedb_log.errors import InvalidRequest
from pyiceberg.table import StaticTable


@pytest.fixture
def icedb(folder, run_icedb):
    return run_icedb


@pytest.fixture
def events(icedb, folder, flush_rows):
    icedb("table", "create", "events", "--partition", "d=day(ts)", "--sort", "ts")
    place = folder.table("events")
    flush_rows(place, [{"ts": "2023-06-01", "n": 1}, {"ts": "2023-06-02", "n": 2}])
    return place


def test_a_table_is_published_once_for_each_state_and_shown(icedb, events, flush_rows, monkeypatch):
    assert "table events is not published: `icedb iceberg publish events`" in icedb("iceberg", "show", "events", code=3)
    said = json.loads(icedb("iceberg", "publish", "events", "-o", "json"))
    assert (said["files"], said["rows"], said["snapshots"], said["left_out_columns"]) == (2, 2, 1, [])
    assert json.loads(icedb("iceberg", "publish", "events", "-o", "json")) == said
    assert json.loads(icedb("iceberg", "show", "events", "-o", "json")) == said
    found = StaticTable.from_metadata(said["metadata"])
    assert len(list(found.scan(row_filter="ts >= '2023-06-02T00:00:00'").plan_files())) == 1
    shown = icedb("iceberg", "show", "events")
    assert said["metadata"] in shown
    assert "iceberg_scan(" in shown
    assert str(said["snapshot_id"]) in shown, "an id has no separators"
    with monkeypatch.context() as patch:
        patch.setattr("icedb.cli.output.out._force_terminal", True)
        patch.setattr("icedb.cli.output.out._width", 60)
        assert f"StaticTable.from_metadata('{said['metadata']}')" in icedb("iceberg", "show", "events")
    flush_rows(events, [{"ts": "2023-06-03", "n": 3}])
    assert json.loads(icedb("iceberg", "show", "events", "-o", "json")) == said
    again = json.loads(icedb("iceberg", "publish", "events", "-o", "json"))
    assert (again["rows"], again["snapshots"]) == (3, 2)
    assert again["metadata"] != said["metadata"]


def test_a_table_that_is_not_there_is_not_published(icedb):
    assert "table 'ghost' does not exist" in icedb("iceberg", "publish", "ghost", code=3)


def test_a_directory_that_was_moved_is_published_anew_by_a_command(icedb, events, folder):
    before = json.loads(icedb("iceberg", "publish", "events", "-o", "json"))
    key = "_icedb/iceberg-location.json"
    folder.store.put(key, b'{"format": 1, "location": "file:///where/it/was"}')
    assert "`icedb iceberg publish --location store`" in icedb("iceberg", "publish", "events", code=2)
    assert "`icedb iceberg publish --location store`" in icedb("iceberg", "show", "events", code=2)
    said = json.loads(icedb("iceberg", "publish", "--location", "store", "-o", "json"))
    assert said["published"] == ["events"]
    assert before["metadata"].startswith(said["location"])
    after = json.loads(icedb("iceberg", "show", "events", "-o", "json"))
    assert (after["metadata"] == before["metadata"], after["rows"]) == (True, before["rows"])
    assert "a directory is found where it lies" in icedb("iceberg", "publish", "--location", "s3://other/place", code=2)
    assert "give a table, or --location" in icedb("iceberg", "publish", code=2)


def test_a_table_that_cannot_be_published_keeps_no_other_from_the_new_place(icedb, events, folder):
    for name in ("damaged", "zebra"):
        icedb("table", "create", name)
        icedb("iceberg", "publish", name)
    icedb("iceberg", "publish", "events")
    paths = folder.table("damaged").paths
    folder.store.put(f"{paths.log_prefix}0000000000001_ab.jsonl", b"broken")
    folder.store.put("_icedb/iceberg-location.json", b'{"format": 1, "location": "file:///where/it/was"}')
    assert "`icedb iceberg publish damaged`" in icedb("iceberg", "publish", "--location", "store", code=1)
    for name in ("events", "zebra"):
        assert json.loads(icedb("iceberg", "show", name, "-o", "json"))["metadata"].startswith(
            f"file://{folder.store.uri(name)}/"
        )


def test_a_lake_publishes(folder, events, cli_env):
    with connect(folder.store.uri("x").removesuffix("/x")) as lake:
        uri = lake.table("events").publish()
        assert StaticTable.from_metadata(uri).scan().count() == 2
        assert lake.table("events").publish() == uri


def test_without_the_package_the_command_says_what_to_install(folder, events, cli_env, monkeypatch):
    monkeypatch.setitem(sys.modules, "icedb_iceberg", None)
    with (
        connect(folder.store.uri("x").removesuffix("/x")) as lake,
        pytest.raises(InvalidRequest, match=r"icedb\[iceberg\]"),
    ):
        lake.table("events").publish()
