"""`icedb erasure`: what they ask for, what they wait for, and the certificate."""

import json

import pytest
from icedb_client.wakeups import TaskTimeout
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import Unavailable
from icedb_log.holds.erasures import create_erasure, list_open_ids, read_erasure
from icedb_log.holds.tags import create_tag, delete_tag
from icedb_sim.tables.erasure_steps import advance, append_users, clean
from icedb_sim.tables.small_table import SmallTable

FOUND = {"outcome": "done", "rows": 2, "files": 1, "bytes": 2048, "files_counted": 3, "partitions": 1}
WHERE = "u = 'victim'"


@pytest.fixture
def table(lend):
    table = lend(SmallTable(name="events"))
    append_users(table, "ann", "victim")
    return table


@pytest.fixture
def workers(workers):
    workers[0] = FOUND
    return workers


@pytest.fixture
def icedb(workers, table, said_by_icedb):
    return said_by_icedb


def open_ids(table):
    return list_open_ids(table)


def let_workers_work(table, monkeypatch):
    """While the command sleeps, a worker and the janitor take their turns, and time passes."""

    def turn(_duration_ms):
        table.flush()
        for erasure_id in open_ids(table):
            advance(table, erasure_id)
        table.clock.advance(15_000)
        clean(table)

    monkeypatch.setattr(table.clock, "sleep_ms", turn)


def test_a_dry_run_asks_a_worker_and_writes_nothing(icedb, workers, table):
    shown = icedb("erasure", "create", "events", "--where", WHERE, "--dry-run", "--timeout", "90s").out
    assert " ".join(shown.split()) == "would erase 2 rows in 1 data files (2.0 KiB) of 1 partitions of table events"
    assert workers[1:] == [("icedb.merge.erase", "events", {"preview": WHERE}, 90_000)]
    assert json.loads(icedb("erasure", "create", "events", "--where", WHERE, "--dry-run", "-o", "json").out) == {
        "table": "events", "dry_run": True, "rows": 2, "files": 1, "bytes": 2048, "files_counted": 3, "partitions": 1,
    }  # fmt: skip
    assert open_ids(table) == ()


def test_a_request_is_written_and_a_worker_woken(icedb, workers, table):
    answer = icedb(
        "erasure", "create", "events", "--where", WHERE, "--yes", "--note", "ticket 7", "--by", "dpo", "-o", "json"
    ).out
    asked = json.loads(answer)
    assert (asked["state"], asked["woken"], asked["object_count"]) == ("requested", True, 0)
    (erasure_id,) = open_ids(table)
    erasure = read_erasure(table, erasure_id)
    assert (erasure.condition, erasure.note, erasure.requested_by) == (WHERE, "ticket 7", "dpo")
    assert workers[-1] == ("icedb.merge.erase", "events")
    assert (
        f"icedb erasure list events {asked['id'][:8]}"
        in icedb("erasure", "create", "events", "--where", WHERE, "--yes").err
    )


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ({"outcome": "refused", "error": {"message": "no column 'x'"}}, 2, "no column 'x'"),
        ({"outcome": "failed", "error": {"message": "a bug"}}, 1, "a bug"),
        (TaskTimeout("late"), 6, "no merge worker said within 600 s"),
        (Unavailable("Redis is away"), 4, "Redis is away"),
    ],
)
def test_without_a_worker_that_says_yes_nothing_is_asked_for(icedb, workers, table, answer, code, words):
    workers[0] = answer
    assert words in icedb("erasure", "create", "events", "--where", "x = 2", "--yes", code=code).err
    assert open_ids(table) == ()


def test_nobody_to_ask_means_no(icedb, table):
    assert "give --yes" in icedb("erasure", "create", "events", "--where", WHERE, code=2).err
    assert "did you mean events" in icedb("erasure", "create", "evnts", "--where", WHERE, code=3).err
    assert open_ids(table) == ()


def test_following_ends_with_the_certificate(icedb, table, monkeypatch):
    table.stage([{"id": 9, "p": "a", "u": "victim"}])
    let_workers_work(table, monkeypatch)
    answer = icedb("erasure", "create", "events", "--where", WHERE, "--yes", "--follow", "-o", "json")
    assert "1 accepted batches have to be flushed first" in answer.err
    assert "the janitor has to delete 2 of 2 objects; grace keeps 2 until 2023-11-" in answer.err
    done = json.loads(answer.out)
    assert (done["state"], done["condition"], done["rows_removed"], len(done["objects"])) == ("complete", WHERE, 2, 2)
    assert done["rows_removed_is_exact"]
    assert [commit["rows_removed"] for commit in done["commits"]] == [2]
    assert all(key.startswith("wh/events/_data/") for key in done["objects"])
    assert done["requested_at"] < done["deleted_at"] < done["checked_at"] <= done["completed_at"]
    assert all(key.startswith("wh/events/_log/") for key in (commit["log_file"] for commit in done["commits"]))
    assert done["proves"]
    assert json.loads(icedb("erasure", "list", "events", done["id"], "-o", "json").out) == done


def test_following_ends_when_it_is_refused(icedb, table, monkeypatch):
    let_workers_work(table, monkeypatch)
    answer = icedb("erasure", "create", "events", "--where", "nope = 1", "--yes", "--follow", code=2)
    assert "no column 'nope'" in answer.err
    assert "refused" in answer.out


def test_erasures_are_listed_and_shown(icedb, table):
    assert "no erasure of table events" in icedb("erasure", "list", "events").err
    bad = table.stage_bytes(b"no json")
    table.flush()
    erasure_id = create_erasure(table, condition=WHERE, clock=table.clock).erasure_id
    advance(table, erasure_id)
    shown = icedb("erasure", "list", "events", erasure_id)
    assert "deleted" in shown.out
    assert "the janitor has to delete 1 of 1 objects" in " ".join(shown.out.split())
    assert f"not covered: 1 batches in quarantine: {bad}" in shown.err
    certificate = json.loads(icedb("erasure", "list", "events", erasure_id, "-o", "json").out)
    assert (certificate["state"], certificate["proves"]) == ("deleted", [])
    assert certificate["not_covered"]["quarantine"] == {"count": 1, "names": [bad]}
    assert WHERE in icedb("erasure", "list", "events").out
    (listed,) = json.loads(icedb("erasure", "list", "events", "-o", "json").out)["erasures"]
    assert (listed["id"], listed["object_count"]) == (erasure_id, 1)
    assert "objects" not in listed


def test_an_id_that_is_not_there_is_said_so(icedb, table):
    assert "is not the id of an erasure" in icedb("erasure", "list", "events", "7", code=2).err
    assert "there is no erasure" in icedb("erasure", "list", "events", new_batch_id(table.clock), code=3).err


def test_tags_that_hold_an_erasure_up_are_named(icedb, table, monkeypatch):
    create_tag(Table.open(table, clock=table.clock), "q3")
    asked = icedb("erasure", "create", "events", "--where", WHERE, "--yes")
    assert "warning: table events has tags (q3)" in " ".join(asked.err.split())
    (erasure_id,) = open_ids(table)
    advance(table, erasure_id)
    shown = " ".join(icedb("erasure", "list", "events", erasure_id).out.split())
    assert "objects; tag q3 keeps 1: icedb tag delete events q3" in shown
    table.clock.advance(table.config.orphan_age_ms)
    clean(table)
    assert tuple(open_ids(table)) == (erasure_id,)
    delete_tag(table, "q3")
    assert "tag q3 keeps 1 until" in " ".join(icedb("erasure", "list", "events", erasure_id).out.split())
    for _ in range(4):
        table.clock.advance(table.config.orphan_age_ms)
        clean(table)
        advance(table, erasure_id)
    assert not open_ids(table)
