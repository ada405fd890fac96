"""`icedb delete` and `icedb rewrite`: what they ask a worker for, when they ask the user, and what they print."""

import json

import pytest
from icedb_client.wakeups import TaskTimeout, WakeupSender
from icedb_log.clock import parse_uuid7_ms
from icedb_log.table.table_config import PartitionField
from icedb_sim.tables.small_table import SmallTable

FOUND = {
    "outcome": "done", "duration_ms": 1, "rows_removed": 12_345, "rows_read": 20_000, "files_scanned": 40,
    "files_rewritten": 3, "files_written": 2, "partitions": 21, "bytes_in": 3 * 1024**2, "bytes_out": 1024**2,
    "committed_key": "k", "paths": [f"d=2023-06-{day:02d}" for day in range(1, 22)],
}  # fmt: skip
NOTHING = {**FOUND, "outcome": "idle", "files_rewritten": 0, "rows_removed": 0, "paths": []}
WHERE = "user = 'x'"


@pytest.fixture
def table(lend):
    return lend(SmallTable(name="events", partition=(PartitionField.parse("d=day(ts)"),)))


class Worker:
    """Answers in turn, the last answer again and again; notes what it was asked."""

    def __init__(self):
        self.asked, self.answers = [], [FOUND]

    def answer(self, task, table, arguments):
        assert task == "icedb.merge.change"
        self.asked.append(arguments)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"task": task, "table": table, "kind": arguments["kind"], "dry_run": "dry_run" in arguments, **answer}


@pytest.fixture
def worker(monkeypatch):
    worker = Worker()
    monkeypatch.setattr(
        WakeupSender, "run", lambda self, task, table, *, arguments, timeout_ms: worker.answer(task, table, arguments)
    )
    return worker


@pytest.fixture
def icedb(worker, table, said_by_icedb):
    return said_by_icedb


def test_a_dry_run_says_what_a_deletion_would_touch(icedb, worker):
    said = icedb("delete", "events", "--where", WHERE, "--dry-run")
    assert worker.asked == [{"kind": "delete", "sql": WHERE, "dry_run": True}]
    assert ["12,345" in said.out, "3 (3.0 MiB)" in said.out, "files counted" in said.out] == [True] * 3
    assert "nothing was written" in said.out and "files written" not in said.out
    assert "d=2023-06-20" in said.out and "d=2023-06-21" not in said.out and "and 1 more" in said.err


def test_a_deletion_is_shown_and_asked_about_first(icedb, worker, monkeypatch):
    said = icedb("delete", "events", "--where", WHERE, code=2)
    assert "give --yes" in said.err and worker.asked == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: "12,345 rows of table events" not in question)
    assert "nothing was changed" in icedb("delete", "events", "--where", WHERE, code=1).err
    assert [arguments.get("dry_run") for arguments in worker.asked] == [True]
    monkeypatch.setattr("typer.confirm", lambda question, err: True)
    assert "2 (1.0 MiB)" in icedb("delete", "events", "--where", WHERE).out
    assert [arguments.get("dry_run") for arguments in worker.asked] == [True, True, None]
    worker.answers = [NOTHING]
    assert "no such row in table events; rows were counted in 40" in icedb("delete", "events", "--where", WHERE).out
    assert worker.asked[-1]["dry_run"], "without such rows nobody is asked, and nothing is deleted"


def test_with_yes_it_is_one_task_and_json_is_the_workers_answer(icedb, worker, tmp_path):
    (tmp_path / "where.sql").write_text(f"{WHERE}\n")
    said = icedb("delete", "events", "--where", f"@{tmp_path}/where.sql", "--yes", "-o", "json")
    (asked,) = worker.asked
    parse_uuid7_ms(asked.pop("request_id"))
    assert asked == {"kind": "delete", "sql": WHERE}
    assert json.loads(said.out)["rows_removed"] == 12_345


def test_a_rewrite_needs_partitions_and_says_how_many_rows_are_left(icedb, worker):
    query = "select * from _rows where n > 0"
    assert "--all" in icedb("rewrite", "events", "--query", query, code=2).err
    assert "--all" in icedb("rewrite", "events", "--query", query, "--all", "--partition", "d=2023-06-01", code=2).err
    assert "no partition field 'x'" in icedb("rewrite", "events", "--query", query, "--partition", "x=1", code=2).err
    assert worker.asked == []
    said = icedb("rewrite", "events", "--query", query, "--partition", "d=2023-06-01", "--yes")
    (asked,) = worker.asked
    parse_uuid7_ms(asked.pop("request_id"))
    assert asked == {"kind": "rewrite", "sql": query, "partitions": ["d=2023-06-01"]}
    assert "20,000" in said.out and "7,655" in said.out
    icedb("rewrite", "events", "--query", query, "--all", "--dry-run")
    assert worker.asked[-1]["partitions"] == [] and worker.asked[-1]["dry_run"]


def test_a_rewrite_is_shown_and_asked_about_first(icedb, worker, monkeypatch):
    rewrite = ("rewrite", "events", "--query", "select * from _rows", "--all")
    assert "give --yes to replace" in icedb(*rewrite, code=2).err and worker.asked == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: "20,000 rows of these partitions" not in question)
    assert "nothing was changed" in icedb(*rewrite, code=1).err
    assert [arguments.get("dry_run") for arguments in worker.asked] == [True]
    monkeypatch.setattr("typer.confirm", lambda question, err: True)
    assert "7,655" in icedb(*rewrite).out
    assert [arguments.get("dry_run") for arguments in worker.asked] == [True, True, None]
    worker.answers = [NOTHING]
    assert "no such partition in table events" in icedb(*rewrite).out
    assert worker.asked[-1]["dry_run"], "without such a partition nobody is asked, and nothing is changed"


@pytest.mark.parametrize(
    ("answer", "code"),
    [(TaskTimeout("late"), 6), ({"outcome": "unavailable", "error": {"message": "no answer from the store"}}, 4)],
)
def test_a_command_without_an_answer_names_the_id_to_repeat_it_with(icedb, worker, answer, code):
    worker.answers = [answer]
    rewrite = ("rewrite", "events", "--query", "select * from _rows", "--all", "--yes")
    said = icedb(*rewrite, code=code).err
    request_id = worker.asked[0]["request_id"]
    assert f"repeat it with --id {request_id}" in said
    worker.answers = [{**FOUND, "repeated": True}]
    again = icedb(*rewrite, "--id", request_id)
    assert worker.asked[1] == worker.asked[0]
    assert "7,655" in again.out and "an earlier run of this command has done it" in again.err


def test_while_another_run_holds_the_table_it_is_asked_again(icedb, worker):
    busy = {"outcome": "busy", "error": {"kind": "LockBusy", "message": "held"}}
    worker.answers = [busy, busy, FOUND]
    icedb("delete", "events", "--where", WHERE, "--yes")
    assert len(worker.asked) == 3
    assert len({asked["request_id"] for asked in worker.asked}) == 1
    worker.answers = [busy]
    assert "busy: held" in icedb("delete", "events", "--where", WHERE, "--yes", "--timeout", "2s", code=1).err
    assert len(worker.asked) < 12


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (
            {"outcome": "refused", "error": {"message": "condition: no aggregate"}},
            2,
            "refused: condition: no aggregate",
        ),
        ({"outcome": "halted", "error": {"message": "a file is cut"}}, 5, "halted: a file is cut"),
        ({"outcome": "unavailable", "error": {"message": "no Spark"}}, 4, "unavailable: no Spark"),
        (TaskTimeout("no worker finished it"), 6, "no worker finished it"),
    ],
)
def test_what_goes_wrong_is_said_in_the_workers_words(icedb, worker, answer, code, said):
    worker.answers = [answer]
    assert said in icedb("delete", "events", "--where", WHERE, "--yes", code=code).err
