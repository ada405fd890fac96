"""The trash by the command line, on a folder; the janitor is called where Redis would have woken it."""

import getpass
import json

import pytest
import typer
from icedb_client.client import Client
from icedb_client.wakeups import WakeupSender
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import NotFound, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.table.stored_config import load_any_config
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.trash.purge import purge_table
from icedb_sim.tables.row_files import RowFileWriter, encode_rows

CLOCK = SystemClock()
WHO = getpass.getuser()


@pytest.fixture
def warehouse(folder):
    return folder


@pytest.fixture
def icedb(warehouse, run_icedb):
    run_icedb("table", "create", "events", "--partition", "event")
    stage(warehouse)
    flush_table(
        Table.open(warehouse.table("events"), clock=CLOCK, owner="test"),
        RowFileWriter(warehouse.store, CLOCK),
    )
    return run_icedb


@pytest.fixture
def janitor(warehouse, monkeypatch):
    """Purges at once when it is told to."""
    told = []

    def send(_self, task, table, *, arguments):
        assert (task, arguments) == ("icedb.janitor.purge", {})
        told.append(table)
        purge_table(warehouse.table(table), clock=CLOCK, owner="test")

    monkeypatch.setattr(WakeupSender, "send", send)
    return told


def stage(warehouse):
    body = encode_rows([{"event": "click"}])
    stage_batch(warehouse.table("events"), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))


def state_of(warehouse):
    mark = load_any_config(warehouse.table("events"))[0].dropped
    return mark and mark.state


def test_a_table_goes_to_the_trash_and_comes_back(icedb, warehouse):
    before = json.loads(icedb("snapshot", "events", "-o", "json"))
    stage(warehouse)
    out = icedb("table", "drop", "events", "--keep", "30d", "--note", "too old")
    assert "is in the trash until 20" in out and "`icedb table undrop events` brings it back" in out
    assert icedb("table", "list") == ""
    for command in (("table", "show"), ("snapshot",), ("vacuum", "--dry-run"), ("status",), ("partitions",)):
        error = icedb(*command, "events", code=3)
        assert "was dropped at" in error and f"by {WHO} and is in the trash; `icedb table undrop events`" in error
    assert "until it is purged no other table can have its name" in icedb("table", "create", "events", code=2)
    shown = icedb("table", "list", "--trash")
    assert "events" in shown and WHO in shown
    (entry,) = json.loads(icedb("table", "list", "--trash", "-o", "json"))["tables"]
    assert (entry["dropped_by"], entry["note"]) == (WHO, "too old")
    assert (entry["table"], entry["state"], entry["waits_for"]) == ("events", "trash", [])
    assert entry["purge_at_ms"] - entry["dropped_ms"] == 30 * 86_400_000
    assert "was in the trash already" in icedb("table", "drop", "events")
    assert "is back" in icedb("table", "undrop", "events")
    after = json.loads(icedb("snapshot", "events", "-o", "json"))
    assert after["files"] == before["files"]
    assert "is not in the trash" in icedb("table", "undrop", "events")
    assert json.loads(icedb("table", "undrop", "events", "-o", "json")) == {
        "table": "events",
        "changed": False,
        "detached_from": None,
    }
    assert json.loads(icedb("table", "list", "--trash", "-o", "json")) == {"tables": []}


def test_purge_purges_and_waits_for_its_end(icedb, warehouse, janitor):
    stage(warehouse)
    out = icedb("table", "drop", "events", "--purge", "--yes")
    assert "events is purged" in out
    assert (janitor, state_of(warehouse)) == (["events"], "purged")
    assert icedb("table", "list", "--trash") == ""
    assert "does not exist" in icedb("table", "drop", "events", code=3)
    assert "table events created" in icedb("table", "create", "events", "--if-not-exists")
    assert json.loads(icedb("table", "show", "events", "-o", "json"))["prefix"].endswith("events.2")


def test_purge_without_a_janitor_says_so_and_waits_no_longer_than_told(icedb, warehouse, monkeypatch):
    monkeypatch.setattr(WakeupSender, "send", lambda *_, **__: (_ for _ in ()).throw(Unavailable("no Redis")))
    out = json.loads(icedb("table", "drop", "events", "--purge", "--yes", "-o", "json"))
    assert (out["state"], out["purge_at_ms"]) == ("purging", None)
    monkeypatch.setattr(WakeupSender, "send", lambda *_, **__: None)
    error = icedb("table", "drop", "events", "--purge", "--yes", "--timeout", "1ms", code=6)
    assert "is not purged yet; is a janitor running?" in error
    assert "is being purged" in icedb("table", "drop", "events", "--purge", "--yes", "--no-wait")
    assert "nothing brings it back" in icedb("table", "undrop", "events", code=2)
    assert "events" in icedb("table", "list", "--trash")
    (entry,) = json.loads(icedb("table", "list", "--trash", "-o", "json"))["tables"]
    assert (entry["state"], entry["purge_at_ms"]) == ("purging", None)


def test_tags_are_shown_and_ended_in_the_trash(icedb):
    icedb("tag", "create", "events", "q3")
    assert "`icedb tag delete events q3` first" in icedb("table", "drop", "events", "--purge", "--yes", code=2)
    icedb("table", "drop", "events")
    (entry,) = json.loads(icedb("table", "list", "--trash", "-o", "json"))["tables"]
    assert [(claim["kind"], claim["name"]) for claim in entry["waits_for"]] == [("tag", "q3")]
    assert json.loads(icedb("tag", "list", "events", "-o", "json"))["tags"][0]["name"] == "q3"
    assert json.loads(icedb("tag", "delete", "events", "q3", "-o", "json"))["ended"]
    assert "is in the trash" in icedb("tag", "create", "events", "q4", code=3)


@pytest.mark.parametrize(("typed", "code"), [("events", 0), ("event", 2), ("", 2)])
def test_purge_asks_for_the_name(icedb, warehouse, janitor, monkeypatch, typed, code):
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: typed)
    assert "nobody can be asked here: give --yes" in icedb("table", "drop", "events", "--purge", code=2)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    icedb("table", "drop", "events", "--purge", code=code)
    assert state_of(warehouse) == (None if code else "purged")


def test_what_cannot_be_dropped_is_refused(icedb, warehouse):
    icedb("table", "drop", "nobody", code=3)
    icedb("table", "undrop", "nobody", code=3)
    icedb("table", "drop", "nobody", "--purge", code=3)
    assert "less than its grace period" in icedb("table", "drop", "events", "--keep", "1h", code=2)
    assert "is not a duration" in icedb("table", "drop", "events", "--keep", "soon", code=2)
    assert state_of(warehouse) is None


def test_producers_are_refused_when_what_they_know_of_the_table_is_too_old(client, create, clock, warehouse):
    create()
    client.enqueue("events", [{"ts": "2026-01-01T00:00:00Z"}])
    drop_table(warehouse.table("events"), clock=clock, request=DropRequest())
    clock.ms += 61_000
    with pytest.raises(NotFound, match="is in the trash"):
        client.enqueue("events", [{"ts": "2026-01-01T00:00:00Z"}])
    undrop_table(warehouse.table("events"), clock=clock)
    client.enqueue("events", [{"ts": "2026-01-01T00:00:00Z"}])


def test_a_table_that_is_dropped_while_tables_are_listed_hides_no_other(icedb, warehouse, monkeypatch):
    icedb("table", "create", "gone")
    read = Client.table_config

    def read_config(self, name):
        if name == "gone":
            raise NotFound("table 'gone' was dropped")
        return read(self, name)

    monkeypatch.setattr(Client, "table_config", read_config)
    found = json.loads(icedb("table", "list", "-o", "json"))
    assert ([table["table"] for table in found["tables"]], found["unreadable"]) == (["events"], {})


def test_a_table_is_purged_here_without_redis_and_janitor(icedb, warehouse):
    stage(warehouse)
    assert "give --purge" in icedb("table", "drop", "events", "--local", code=2)
    assert "table events is purged" in icedb("table", "drop", "events", "--purge", "--yes", "--local")
    assert state_of(warehouse) == "purged"
    assert not warehouse.table("events").store.list_page("events/_data/", limit=1).objects
