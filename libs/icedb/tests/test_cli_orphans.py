"""``icedb orphans``: what it shows, what it asks the janitor for, and what it says of a refusal."""

import json

import pytest
from icedb.cli.runner import Task
from icedb_log.commit.fence import FenceState, write_fence
from icedb_log.names import JANITOR_ORPHANS
from icedb_log.table.stored_config import read_table_config
from icedb_sim.tables.log_views import data
from icedb_sim.tables.small_table import SmallTable

DAY_MS = 86_400_000


@pytest.fixture
def table(lend):
    """A table without any commit: two old data files, a young one, and something else."""
    table = lend(SmallTable(orphan_age_ms=DAY_MS))
    for name in ("old1", "old2"):
        table.store.put(data(name), b"x" * 100)
    table.store.put(f"{table.paths.data_prefix}notes.txt", b"x" * 100)
    table.clock.advance(3 * DAY_MS)
    table.store.put(data("young"), b"x" * 100)
    return table


@pytest.fixture
def janitor(monkeypatch):
    """What it was asked for, and its answer."""
    asked = []
    answer = {"task": JANITOR_ORPHANS, "outcome": "done", "deleted_orphans": 2, "held_orphans": 0, "orphan_share": 0.5}

    def answer_for(task, wait_ms):
        asked.append((task.name, task.table, task.arguments, wait_ms, task.run.as_data))
        return answer

    monkeypatch.setattr(Task, "ask", answer_for)
    return asked, answer


def test_without_delete_it_only_shows(table, run_icedb):
    before = table.keys()
    found = json.loads(run_icedb("orphans", "t", "-o", "json"))
    assert (found["would_delete"], found["orphans"], found["young"]) == (
        [],
        {"files": 2, "bytes": 200},
        {"files": 1, "bytes": 100},
    )
    assert {each["path"]: each["guard"] for each in found["waiting"]} == {
        "wh/t/_data/p=a/old1.parquet": "share",
        "wh/t/_data/p=a/old2.parquet": "share",
        "wh/t/_data/p=a/young.parquet": "age",
    }
    assert (round(found["share"], 3), found["max_share"], found["data_bytes"]) == (0.667, 0.25, 300)
    assert found["unknown"] == ["wh/t/_data/notes.txt"]
    assert table.keys() == before
    text = run_icedb("orphans", "t")
    assert "would delete 0 orphans now; 2 data files (200 B, 66.7% of the table)" in text
    assert "icedb fsck t" in text
    assert "wh/t/_data/notes.txt" in text


def test_bounds_for_this_time(table, run_icedb):
    older = json.loads(run_icedb("orphans", "t", "--older-than", "4d", "-o", "json"))
    assert older["young"]["files"] == 3
    assert "orphan age is 86400000 ms" in run_icedb("orphans", "t", "--older-than", "23h", code=2)
    assert "--delete" in run_icedb("orphans", "t", "--force", code=2)
    assert "'ghost' does not exist" in run_icedb("orphans", "ghost", code=3)


def test_deleting_is_the_janitors(table, run_icedb, janitor):
    asked, answer = janitor
    run_icedb("orphans", "t", "--delete", "--older-than", "2d", "--timeout", "5s")
    arguments = {"older_than_ms": 2 * 86_400_000, "force": False}
    assert asked == [(JANITOR_ORPHANS, "t", arguments, 5000, False)]
    assert table.store.head(data("old1"))
    answer |= {"deleted_orphans": 0, "held_orphans": 2}
    refused = run_icedb("orphans", "t", "--delete", code=1)
    assert "icedb fsck t" in refused
    assert "--delete --force" in refused


def test_a_lost_commit_is_in_the_status(table, run_icedb):
    name = f"{table.clock.now_ms():013d}_{'ab' * 16}"
    state = FenceState(9, "me", None, landed=(name,))
    write_fence(table.store, table.paths.fence_key("merge"), state, etag=None, clock=table.clock)
    assert f"1, the first is {name}" in " ".join(run_icedb("status", "t").split()), "however wide lines are"
    assert json.loads(run_icedb("status", "t", "-o", "json"))["tables"][0]["lost_commits"] == [name]


def test_retention_of_quarantine_is_set_and_taken_back(table, run_icedb):
    def retention_ms():
        return read_table_config(table).quarantine_retention_ms

    run_icedb("table", "alter", "t", "--set", "quarantine_retention=90d")
    assert retention_ms() == 90 * 86_400_000
    assert "90 d" in run_icedb("table", "show", "t")
    run_icedb("table", "alter", "t", "--set", "quarantine_retention=off")
    assert retention_ms() is None
    assert "quarantine" in run_icedb("table", "alter", "t", "--set", "quarantine_retention=1min", code=2)
