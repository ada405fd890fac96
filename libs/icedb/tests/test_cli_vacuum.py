"""``icedb vacuum``: what it shows of a plan, of each object, and of what the janitor did."""

import json

import pytest
from icedb.cli import clean
from icedb.cli.runner import Task
from icedb_log.clock import SystemClock
from icedb_log.names import JANITOR_VACUUM
from icedb_log.store_settings import open_warehouse
from icedb_sim.growth.dead_table import DAY_MS, build_dead_table
from icedb_sim.tables.lease_steps import put_lease

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A warehouse that no test changes: five dead files may go, and two of a table that somebody reads wait."""
    url = f"file://{tmp_path_factory.mktemp('vacuum')}/warehouse"
    warehouse, now_ms = open_warehouse(url), CLOCK.now_ms()
    for name, count, died_ms in (("free", 5, now_ms - 30 * DAY_MS), ("read", 2, now_ms - 30 * DAY_MS)):
        build_dead_table(warehouse.table(name), dead_count=count, died_ms=died_ms)
    build_dead_table(warehouse.table("young"), dead_count=3, died_ms=now_ms)
    put_lease(warehouse.table("read"), at_ms=1, ttl_ms=3_600_000, clock=CLOCK, lease_id="reader1")
    return url


@pytest.fixture
def icedb(place, cli_env, run_icedb):
    cli_env.setenv("ICEDB_STORE", place)
    return run_icedb


@pytest.fixture
def janitor(monkeypatch):
    """What the janitor answers; nobody is asked."""
    answer = {"task": JANITOR_VACUUM, "outcome": "done", "deleted_log_files": 0, "deleted_data_files": 0}
    monkeypatch.setattr(Task, "ask", lambda *_, **__: answer)
    return answer


def test_a_dry_run_shows_each_guard_how_many_objects_until_when_and_who_holds_them(icedb):
    assert icedb("vacuum", "free", "--dry-run").strip() == (
        "would delete 0 log files and 5 data files; 0 dead objects wait"
    )
    held = icedb("vacuum", "read", "--dry-run").splitlines()
    assert held[0] == "would delete 0 log files and 0 data files; 2 dead objects wait"
    assert held[1].split("  ")[0] == "guard"
    assert held[2].split()[:3] == ["lease", "reader1", "2"]
    until, last = held[2].split()[3:]
    assert until == last
    assert until.endswith("Z")
    assert icedb("vacuum", "young", "--dry-run").splitlines()[2].split()[:3] == ["grace", "-", "3"]


def test_each_object_can_be_listed_with_what_keeps_it(icedb, monkeypatch):
    monkeypatch.setattr(clean, "JSON_CHUNK", 2)  # written piece by piece
    head, *lines = icedb("vacuum", "free", "--dry-run", "-o", "csv").splitlines()
    assert head == "path,guard,until_ms,held_by"
    assert [line.partition(",")[2] for line in lines] == [",,"] * 5
    found = list(map(json.loads, icedb("vacuum", "read", "--dry-run", "-o", "ndjson").splitlines()))
    assert [(each["guard"], each["held_by"]) for each in found] == [("lease", "reader1")] * 2
    assert all("/_data/" in each["path"] and each["until_ms"] for each in found)
    assert "-o csv goes with --dry-run" in icedb("vacuum", "free", "-o", "csv", code=2)


def test_json_has_everything(icedb, monkeypatch):
    monkeypatch.setattr(clean, "JSON_CHUNK", 2)  # lists are written piece by piece
    free = json.loads(icedb("vacuum", "free", "--dry-run", "-o", "json"))
    assert (len(free["data_files"]), free["log_files"], free["waiting"], free["guards"]) == (5, [], [], [])
    young = json.loads(icedb("vacuum", "young", "--dry-run", "-o", "json"))
    assert [(each["guard"], each["held_by"]) for each in young["waiting"]] == [("grace", "")] * 3
    read = json.loads(icedb("vacuum", "read", "--dry-run", "-o", "json"))
    (group,) = read["guards"]
    assert (group["guard"], group["held_by"], group["objects"]) == ("lease", "reader1", 2)
    assert {each["until_ms"] for each in read["waiting"]} == {group["first_until_ms"]} == {group["last_until_ms"]}


def test_many_holders_are_counted(icedb, place, monkeypatch):
    monkeypatch.setattr(clean, "MAX_HOLDERS", 0)
    assert len(icedb("vacuum", "read", "--dry-run").splitlines()) == 2


def test_what_was_deleted_what_failed_and_why_and_what_waits(icedb, janitor):
    janitor |= {
        "deleted_log_files": 3,
        "deleted_data_files": 1200,
        "deleted_orphans": 7,
        "failures": [{"kind": "denied", "count": 2, "key": "wh/free/_data/x.parquet", "reason": "AccessDenied"}],
        "waiting_by_guard": {"lease": 4, "grace": 1},
        "has_more": True,
    }
    assert icedb("vacuum", "free").splitlines() == [
        "deleted from table free: 3 log files, 1,200 data files, 7 orphans",
        "failed: 2 objects (denied), e.g. wh/free/_data/x.parquet: AccessDenied; the next run tries again",
        "wait: 1 for grace, 4 for lease (`icedb vacuum free --dry-run` says until when)",
        "there is more to delete: the janitor goes on by itself",
    ]
    assert json.loads(icedb("vacuum", "free", "-o", "json")) == janitor


def test_nothing_to_do_and_a_janitor_that_fails(icedb, janitor):
    janitor["outcome"] = "idle"
    assert icedb("vacuum", "free") == "nothing to do for table free\n"
    janitor |= {"outcome": "halted", "error": {"message": "line 0 is not JSON"}}
    assert "line 0 is not JSON" in icedb("vacuum", "free", code=5)
