"""Views by the command line, on a folder; what an ingest worker would answer is written down."""

import json

import pytest
from icedb_client.client import Client
from icedb_client.wakeups import TaskTimeout
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest
from icedb_log.feed.feeds import feed_view
from icedb_log.feed.views import open_source, read_registration
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import read_table_config
from icedb_sim.tables.row_feeds import RowFileFeeder

CLOCK = SystemClock()
QUERY = "select event, count(*) as n from _rows group by 1"


@pytest.fixture
def warehouse(folder):
    return folder


@pytest.fixture
def worker(workers):
    workers[0] = {"outcome": "done", "schema": {"event": "VARCHAR", "n": "BIGINT"}}
    return workers


@pytest.fixture
def icedb(warehouse, worker, run_icedb):
    run_icedb("table", "create", "events")
    return run_icedb


@pytest.fixture
def view(icedb):
    icedb("table", "create", "counts", "--from", "events", "--query", QUERY, "--sort", "event")


@pytest.fixture
def append(warehouse, flush_rows):
    return lambda event: flush_rows(warehouse.table("events"), [{"event": event}])


def feed(warehouse, name="counts"):
    feeder = RowFileFeeder(warehouse.store, CLOCK)
    view = Table.open(warehouse.table(name), clock=CLOCK, owner="test")
    return feed_view(view, open_source(view), feeder)


def test_a_view_is_checked_created_shown_and_listed(icedb, warehouse, worker, view, append):
    config = read_table_config(warehouse.table("counts"))
    assert (config.view_of, config.view_query, config.sort) == ("events", QUERY, ("event",))
    assert config.declared == {"event": "VARCHAR", "n": "BIGINT"}
    (task, _, arguments, timeout_ms) = worker[1]
    assert (task, timeout_ms, arguments["config"]["view_query"]) == ("icedb.ingest.check_query", 120_000, QUERY)
    assert read_registration(warehouse.table("events"), "counts").state == "active"
    shown = icedb("table", "show", "counts")
    assert "view of" in shown and "events" in shown and QUERY in shown
    append("click")
    append("view")
    (lag,) = json.loads(icedb("views", "events", "-o", "json"))["views"]
    assert lag.pop("lag_ms") >= 0
    figures = {"waiting_commits": 2, "refused_commits": 0, "last_refusal": None}
    figures |= {"backfill_files": 0, "backfilled_files": 0}
    assert lag == {"view": "counts", "source": "events", "state": "active", **figures}
    assert feed(warehouse).commit_count == 2
    assert "counts active 0 - 0" in " ".join(icedb("views", "events").split())
    assert icedb("views", "counts") == ""


def test_a_view_of_a_table_with_rows_says_that_they_are_not_in_it(icedb, append, monkeypatch):
    notes = []
    monkeypatch.setattr("icedb.cli.table.print_note", notes.append)
    options = ("--from", "events", "--query", QUERY)
    icedb("table", "create", "early", *options)
    append("click")
    append("view")
    assert notes == []
    icedb("table", "create", "late", *options)
    (note,) = notes
    assert "takes what is committed to events from now on; the 2 rows that are there already are not in it" in note
    icedb("table", "create", "late", *options, "--if-not-exists")
    assert len(notes) == 1


def test_a_view_begins_with_the_rows_that_are_there(icedb, warehouse, append, monkeypatch):
    notes = []
    monkeypatch.setattr("icedb.cli.table.print_note", notes.append)
    append("click")
    append("view")
    icedb("table", "create", "all", "--from", "events", "--query", QUERY, "--set", "view_backfill=on")
    assert notes == ["view all begins with the 2 rows of events; `icedb status all` shows how far it is"]
    assert read_table_config(warehouse.table("all")).has_backfill
    assert "all active, backfill 0 of 2 data files 0 - 0" in " ".join(icedb("views", "events").split())
    assert "backfill 0 of 2 data files" in icedb("status", "all")
    assert feed(warehouse, "all").backfilled_count == 2
    assert "all active 0 - 0" in " ".join(icedb("views", "events").split())
    assert "only a view has a source" in icedb("table", "create", "other", "--set", "view_backfill=on", code=2)


def test_why_a_commit_was_refused_is_told(icedb, warehouse, view, flush_rows):
    flush_rows(warehouse.table("events"), [{"event": "click", "poison": "x"}])
    feed(warehouse)
    said = icedb("views", "events")
    assert "counts active 0 - 1" in " ".join(said.split())
    assert "why, the last time: a row is poisoned" in said
    (lag,) = json.loads(icedb("views", "events", "-o", "json"))["views"]
    assert (lag["refused_commits"], lag["last_refusal"]) == (1, "a row is poisoned")


def test_a_query_from_a_file_and_a_creation_that_stopped_halfway(icedb, warehouse, tmp_path, view):
    (tmp_path / "query.sql").write_text(f"{QUERY}\n")
    again = ("table", "create", "counts", "--from", "events", "--query", f"@{tmp_path}/query.sql", "--sort", "event")
    assert "exists already" in icedb(*again, code=2)
    warehouse.store.delete([warehouse.table("events").paths.view_key("counts")])
    assert "is there already" in icedb(*again, "--if-not-exists")
    assert read_registration(warehouse.table("events"), "counts").state == "active"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--from", "events"), "a view needs both"),
        (("--query", QUERY), "a view needs both"),
        (("--from", "nope", "--query", QUERY), "table 'nope' does not exist"),
        (("--from", "counts2", "--query", QUERY), "cannot feed itself"),
        (("--from", "events", "--query", QUERY, "--insert-query", QUERY, "--source", "n:BIGINT"), "instead of"),
        (("--from", "events", "--query", "@nothing.sql"), "--query 'nothing.sql' cannot be read"),
    ],
)
def test_a_view_that_cannot_be_is_refused_before_a_worker_is_asked(icedb, worker, warehouse, options, problem):
    code = 3 if "nope" in problem else 2
    assert problem in icedb("table", "create", "counts2", *options, code=code)
    assert len(worker) == 1
    assert not list_all(warehouse.store, f"{warehouse.table('counts2').paths.prefix}/").objects


def test_a_query_that_the_worker_refuses_makes_no_view(icedb, worker, warehouse):
    create = ("table", "create", "counts", "--from", "events", "--query", QUERY)
    worker[0] = {"outcome": "refused", "error": {"message": "view_query: no column 'event'"}}
    assert "the view_query of table counts is refused: view_query: no column" in icedb(*create, code=2)
    worker[0] = TaskTimeout("late")
    assert "the view_query of table counts was not checked, and nothing was changed" in icedb(*create, code=6)
    assert warehouse.list_tables() == ("events",)


def test_detach_and_attach(icedb, warehouse, view, append):
    append("click")
    assert "counts detached" in " ".join(icedb("views", "events", "--detach", "counts").split())
    assert json.loads(icedb("views", "events", "--detach", "counts", "-o", "json"))["views"][0]["state"] == "detached"
    assert not feed(warehouse).is_attached
    assert "counts detached 0 - 0" in " ".join(icedb("views", "events").split())
    assert "counts active" in " ".join(icedb("views", "events", "--attach", "counts").split())
    append("view")
    assert feed(warehouse).commit_count == 1
    assert "table events is no view" in icedb("views", "events", "--attach", "events", code=2)
    assert "is fed by table events, not by counts" in icedb("views", "counts", "--attach", "counts", code=2)
    assert "does not exist" in icedb("views", "events", "--attach", "nope", code=3)
    assert "not both" in icedb("views", "events", "--attach", "counts", "--detach", "counts", code=2)


def test_a_view_whose_table_is_gone_can_be_detached(icedb, warehouse, view):
    warehouse.store.delete([info.key for info in list_all(warehouse.store, "counts/").objects])
    assert "counts gone" in " ".join(icedb("views", "events").split())
    icedb("views", "events", "--detach", "counts")
    assert read_registration(warehouse.table("events"), "counts").state == "detached"
    assert "feeds no view 'other'" in icedb("views", "events", "--detach", "other", code=3)


def test_batches_for_a_view_are_refused_at_once(icedb, warehouse, view, tmp_path):
    (tmp_path / "rows.ndjson").write_text('{"event":"click"}\n')
    assert "is a view of 'events': it takes no batches" in icedb("ingest", "counts", f"{tmp_path}/rows.ndjson", code=2)
    with Client() as client, pytest.raises(InvalidRequest, match="send them to 'events'"):
        client.enqueue("counts", [{"event": "click"}])


def test_a_halted_view_is_said_to_be_halted(icedb, warehouse, view):
    warehouse.store.put(f"{warehouse.table('counts').paths.log_prefix}0000000000001_ab.jsonl", b"broken")
    assert "counts halted" in " ".join(icedb("views", "events").split())
