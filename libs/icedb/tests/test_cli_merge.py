"""``icedb merge``: what it asks workers for, and ``--dry-run``, which needs none."""

import json

import pytest
from icedb.cli.runner import Task
from icedb_log.names import MERGE_MERGE
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig


@pytest.fixture(scope="module")
def url(tmp_path_factory, flush_rows):
    """A warehouse that no test changes."""
    url = f"file://{tmp_path_factory.mktemp('merge')}/warehouse"
    place = open_warehouse(url).table("events")
    create_table(
        place,
        TableConfig.create(name="events", partition=(PartitionField(name="user", column="user"),)),
    )
    for number in range(8):
        rows = [{"user": "busy", "n": number}] + [{"user": "quiet", "n": number}] * (number < 2)
        rows += [{"user": "once", "n": number}] * (number == 0)
        flush_rows(place, rows)
    return url


@pytest.fixture
def icedb(url, cli_env, run_icedb):
    cli_env.setenv("ICEDB_STORE", url)
    return run_icedb


@pytest.fixture
def answers(monkeypatch):
    """Answers of the worker, in turn; what was asked is kept."""
    state = {"asked": [], "answers": []}

    def ask(task, wait_ms, *, is_quiet=False):
        assert is_quiet or not task.arguments.get("full"), "the bar of all turns is shown"
        state["asked"].append((task.name, task.table, task.arguments, wait_ms))
        return state["answers"].pop(0)

    monkeypatch.setattr(Task, "ask", ask)
    return state


def turn(commits, *, has_more, outcome="done", **fields):
    return {"task": MERGE_MERGE, "outcome": outcome, "commits": commits, "has_more": has_more, **fields}


def test_explain_says_for_every_partition_what_is_merged_or_why_not(icedb):
    shown = icedb("merge", "events", "--dry-run")
    lines = {line.split()[0]: line for line in shown.splitlines() if line.startswith("user=")}
    assert "hot: 8 files of up to tier 0" in lines["user=busy"]
    assert lines["user=busy"].rstrip().endswith("now")
    assert "fewer than 8 files in each tier" in lines["user=quiet"]
    assert "one file only" in lines["user=once"]
    assert "folded now" in shown


def test_explain_as_json_has_the_groups(icedb):
    shown = json.loads(icedb("merge", "events", "--dry-run", "-o", "json"))
    found = {partition["partition"]: partition for partition in shown["partitions"]}
    (group,) = found["user=busy"]["groups"]
    assert (group["lane"], group["when"], group["file_count"], len(group["paths"])) == ("hot", "now", 8, 8)
    assert {name: partition["reason"] for name, partition in found.items()} == {
        "user=busy": "merge",
        "user=quiet": "cold",
        "user=once": "one_file",
    }
    full = json.loads(icedb("merge", "events", "--dry-run", "--full", "-o", "json"))
    assert {partition["reason"] for partition in full["partitions"]} == {"merge", "one_file"}


def test_a_full_merge_goes_on_until_nothing_is_left(icedb, answers):
    answers["answers"] = [
        turn(2, has_more=True, duration_ms=10),
        turn(0, has_more=None, outcome="busy", duration_ms=1),
        turn(1, has_more=True, duration_ms=10),
        turn(0, has_more=False, outcome="idle", duration_ms=5),
    ]
    done = json.loads(icedb("merge", "events", "--full", "-o", "json"))
    assert (done["commits"], done["duration_ms"], done["outcome"], done["has_more"]) == (3, 25, "done", False)
    assert [asked[:3] for asked in answers["asked"]] == [(MERGE_MERGE, "events", {"full": True})] * 4
    waits = [asked[3] for asked in answers["asked"]]
    assert waits == sorted(waits, reverse=True)


def test_what_was_merged_is_told_in_words_and_units(icedb, answers):
    figures = {"files_in": 28, "files_out": 1, "bytes_in": 34_005, "bytes_out": 14_481, "folded_log_files": 4}
    answers["answers"] = [turn(1, has_more=False, table="events", rows=1234, bytes_copied=0, **figures)]
    told = " ".join(icedb("merge", "events", "--full").split())
    assert told == (
        "table events merged 28 data files (33.2 KiB) into 1 data file (14.1 KiB) rows 1,234 commits 1 log files folded 4"
    )
    answers["answers"] = [turn(0, has_more=False, outcome="idle", table="events")]
    assert icedb("merge", "events", "--full") == "nothing to merge in table events\n"


def test_a_full_merge_that_takes_too_long_says_what_stays(icedb, answers):
    answers["answers"] = [turn(2, has_more=True)]
    said = icedb("merge", "events", "--full", "--timeout", "0ms", code=6)
    assert "not everything was merged in time; 2 commits have landed and stay" in said


def test_a_full_merge_that_fails_after_a_turn_fails(icedb, answers):
    failed = {"outcome": "halted", "error": {"message": "the log is damaged"}, "commits": 0}
    answers["answers"] = [turn(2, has_more=True), failed]
    assert "the log is damaged" in icedb("merge", "events", "--full", code=5)


def test_a_table_that_is_busy_from_the_start_is_busy(icedb, answers):
    answers["answers"] = [turn(0, has_more=None, outcome="busy", error={"message": "another run"})]
    icedb("merge", "events", "--full", code=1)


def test_the_cold_lane_can_be_asked_for(icedb, monkeypatch):
    asked = []
    monkeypatch.setattr(Task, "carry_out", lambda task, _show: asked.append((task.name, task.table)))
    icedb("merge", "events", "--cold")
    assert asked == [("icedb.merge.cold", "events")]
    assert "--cold goes neither with --full" in icedb("merge", "events", "--cold", "--full", code=2)
