"""``icedb shell`` without a terminal: statements, commands, and tables that stand still."""

import io
import stat
from itertools import chain
from types import SimpleNamespace

import pytest
from icedb.cli.shell import _Session, _split, find_names, history_path, is_complete
from icedb_client import Client
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse


@pytest.fixture
def commit(folder):
    parquet = ParquetWarehouse(folder)
    parquet.create("events", "d=day(ts)")

    def commit(number):
        rows = f"select timestamp '2026-01-02' as ts, {number}::bigint as n"
        parquet.commit(
            "events", rows, partition="d=2026-01-02", schema={"ts": "TIMESTAMP", "n": "BIGINT", "a b": "DATE"}
        )

    commit(1)
    return commit


@pytest.fixture
def shell(commit, run_icedb, monkeypatch):
    def shell(text, *options, code=0):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return run_icedb("query", *options, code=code)

    return shell


def test_statements_come_from_standard_input(shell):
    assert shell("select 1 as a;\nselect\n 2 as b; select 3 as c").split() == ["a", "1", "b", "2", "c", "3"]
    assert shell("select n from events", "-o", "csv") == "n\n1\n"
    assert shell("\\d\n").split() == ["table", "snapshot", "events", "-"]
    lines = shell("\\d events\n").splitlines()
    assert [line.split()[0] for line in lines] == ["column", "ts", "n", "a", "d"]
    assert "partition d" in shell("\\d+ events")
    assert shell("\\help\n") == shell("\\?\n")
    assert shell("select 1 as a;\n\\q\nselect 2 as b;").split() == ["a", "1"]


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        ("select 1;\nselect * from nope;\nselect 2;", "table 'nope' does not exist", 3),
        ("drop table events;", "DROP is not allowed", 2),
        ("selec 1;", "not understood", 2),
        ("\\nope", "is no command", 2),
        ("\\d a b", "is no command", 2),
    ],
)
def test_the_first_that_fails_ends_it(shell, text, words, code):
    assert words in shell(text, code=code)


@pytest.fixture
def session(commit, folder):
    client = Client(warehouse=folder)
    answers = []
    run = SimpleNamespace(client=client, clock=client.clock)
    session = _Session(
        run,
        read=lambda table: client.snapshot(table, bounds=True),
        answer=lambda rows: answers.append(rows.fetchall()),
    )
    session.answers = answers
    return session


def test_a_table_stands_still_until_it_is_read_anew(session, commit, capsys):
    count = "select count(*) from events"
    session.execute(count)
    commit(2)
    session.execute(f"{count}; {count}")
    assert capsys.readouterr().err.count("events: snapshot ") == 1
    session.execute("\\refresh")
    session.execute(count)
    assert session.answers == [[(1,)], [(1,)], [(1,)], [(2,)]]
    assert "events: snapshot " in capsys.readouterr().err


def test_names_are_completed_by_what_the_statement_names(session, capsys):
    found = dict(find_names(session, "select  from events"))
    assert found["n"] == "events: BIGINT"
    assert found['"a b"'] == "events: DATE"
    assert (found["d"], found["events"], found["select"], found["approx_count_distinct"]) == (
        "events: partition",
        "table",
        "keyword",
        "function",
    )
    assert "n" not in dict(find_names(session, "select "))
    assert capsys.readouterr().err == ""
    session.execute("from events")
    assert "events: snapshot " in capsys.readouterr().err, "said when it is read for a person"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", True),
        ("\\d", True),
        ("select 1", False),
        ("select 1;", True),
        ("select 1;  \n", True),
        ("select 'a;", False),
        ("selec;", True),
        ("select 1; select 2", False),
    ],
)
def test_where_a_statement_ends(text, whole):
    assert is_complete(text) == whole
    lines = f"{text}\nselect 5;".splitlines(keepends=True)
    assert "".join(chain(_split(lines))).strip().endswith("select 5;")


def test_only_its_owner_reads_the_history(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = history_path()
    path.chmod(0o644)
    assert history_path() == path == tmp_path / "icedb" / "shell_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
