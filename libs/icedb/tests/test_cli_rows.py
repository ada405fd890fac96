"""``icedb describe`` and ``query``: what people read on a terminal, programs in a pipe, and files hold."""

import csv
import io
import json
import os
import stat
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb.cli import rows as rows_module
from icedb.cli.app import run
from icedb.cli.output import VisibleConsole
from icedb.cli.rows import print_rows
from icedb.cli.runner import INVALID
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT"}
THREE = (
    "select * from (values (1, 'a|b', [1]), (20000, 'two\nlines', null), (null, '\x1b[2J\u202e', [])) t(n, text, list)"
)


@pytest.fixture
def icedb(folder, run_icedb):
    parquet = ParquetWarehouse(folder)
    parquet.create("events", "d=day(ts)", sort=("ts",))
    for day in (2, 3):
        select = f"select timestamp '2026-01-0{day}' + to_seconds(i::bigint) as ts, 'view' as event, i as n from range(300) t(i)"
        stats = {"ts": (f"2026-01-0{day}T00:00:00.000000Z", f"2026-01-0{day}T00:04:59.000000Z", 0)}
        parquet.commit("events", select, partition=f"d=2026-01-0{day}", schema=SCHEMA, stats=stats)
    return run_icedb


@pytest.fixture
def screen(monkeypatch):
    """Makes standard output a terminal of some columns; returns what is on it."""

    def screen(width):
        monkeypatch.setenv("TERM", "xterm")  # before the console, which looks at it once
        console = VisibleConsole(file=io.StringIO(), force_terminal=True, width=width, height=10, highlight=False)
        monkeypatch.setattr(rows_module, "out", console)
        return lambda: console.file.getvalue().splitlines()

    return screen


def test_a_plan_is_printed_as_the_plan(icedb):
    shown = icedb("query", "explain select event from events where n > 1").splitlines()
    assert shown[0].startswith("┌──")
    assert any("READ_PARQUET" in line for line in shown)
    assert not any("↵" in line or "explain_value" in line for line in shown)
    (row,) = json.loads(icedb("query", "explain select event from events", "-o", "json"))["rows"]
    assert row["explain_value"].startswith("┌──")


def test_describe_says_what_is_known_and_how_well(icedb, monkeypatch):
    shown = icedb("describe", "events")
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    assert lines["rows"] == ["rows", "600"]
    assert lines["partition"] == ["partition", "d", "2026-01-02", "…", "2026-01-03", "(2", "values)"]
    assert lines["ts"] == ["ts", "TIMESTAMP", "0", "%", "600", "2026-01-02", "00:00:00", "2026-01-03", "00:04:59"]
    assert lines["event"] == ["event", "VARCHAR", "0", "%", "1", "view", "view"]
    assert lines["n"][:4] + lines["n"][-2:] == ["n", "BIGINT", "0", "%", "0", "299"]
    monkeypatch.setattr("icedb_client.describe.SMALL_ROWS", 0)
    assert "TIMESTAMP    0 %         ?" in icedb("describe", "events")
    found = json.loads(icedb("describe", "events", "-o", "json"))
    assert (found["source"], found["opened_count"], found["row_count"]) == ("footers", 2, 600)
    assert found["columns"][1] == {
        "name": "event",
        "type": "VARCHAR",
        "null_share": 0.0,
        "nulls_known": "exact",
        "distinct_count": 1,
        "distinct_known": "exact",
        "min": "view",
        "max": "view",
        "range_known": "exact",
        "promoted_from": None,
    }
    assert "did you mean events?" in icedb("describe", "evnts", code=3)


def test_each_format_holds_the_rows(icedb, tmp_path):
    rows = list(csv.reader(io.StringIO(icedb("query", THREE, "-o", "csv"))))
    assert rows == [
        ["n", "text", "list"],
        ["1", "a|b", "[1]"],
        ["20000", "two\nlines", ""],
        ["", "\x1b[2J\u202e", "[]"],
    ]
    lines = icedb("query", THREE, "-o", "ndjson").splitlines()
    assert json.loads(lines[1]) == {"n": 20000, "text": "two\nlines", "list": None}
    assert "`icedb query` prints no tsv: give -o table, json, csv, ndjson, parquet or arrow" in icedb(
        "query", THREE, "-o", "tsv", code=INVALID
    )
    assert "`icedb table show` prints no csv: give -o table or json" in icedb(
        "table", "show", "events", "-o", "csv", code=INVALID
    )
    assert json.loads(icedb("query", THREE, "-o", "json"))["row_count"] == 3
    for name, read in (("x.parquet", pq.read_table), ("x.arrow", lambda path: pa.ipc.open_stream(path).read_all())):
        icedb("query", THREE, "--to", str(tmp_path / name))
        assert read(str(tmp_path / name)).to_pydict()["n"] == [1, 20000, None]


def test_all_rows_are_written_unless_limited(icedb, tmp_path):
    ask = ("query", "select n from events order by n")
    assert len(icedb(*ask).splitlines()) == 101
    assert len(icedb(*ask, "-o", "csv").splitlines()) == 601
    for suffix in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"out.{suffix}"
        icedb(*ask, "--to", str(path), "--limit", "7")
    icedb(*ask, "--to", str(tmp_path / "any.name"), "--limit", "7", "-o", "json")
    assert set(json.loads((tmp_path / "any.name").read_text())["snapshots"]) == {"events"}
    for limit, has_more in (("599", True), ("600", False)):
        assert json.loads(icedb(*ask, "--limit", limit, "-o", "json"))["has_more"] is has_more
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 7
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 7


def test_a_file_is_there_whole_or_as_it_was(icedb, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")
    bad = "select n, case when n = 299 then error('boom') end from events"
    assert "boom" in icedb("query", bad, "--to", str(path), code=2)
    assert path.read_text() == "before"
    icedb("query", "select 1 as one", "--to", str(path))
    assert path.read_text() == "one\n1\n"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["out.csv"]
    assert "a file of this machine" in icedb("query", "select 1", "--to", "s3://bucket/x.csv", code=2)
    assert "there is no folder" in icedb("query", "select 1", "--to", str(tmp_path / "none" / "x.csv"), code=2)
    assert "give it a suffix" in icedb("query", "select 1", "--to", str(tmp_path / "x.xls"), code=2)


def test_a_pipe_gets_values_as_they_are(icedb):
    lines = icedb("query", "select 1234567 as n, 0.1 + 0.2 as x, true as ok, 'x' || repeat('y', 300) as s").splitlines()
    assert lines[1].split() == ["1234567", "0.3", "true", "x" + "y" * 300]


def test_a_person_reads_numbers_and_short_cells(screen):
    shown = screen(40)
    columns = [("n", "BIGINT"), ("x", "DOUBLE"), ("text", "VARCHAR")]
    left_out = print_rows(columns, [(1234567, 1234.5, "word " * 20), (2026, 1 / 3, None), (-5, 1e-9, "日本語" * 9)])
    assert not left_out
    lines = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in shown()]
    assert lines == [
        "        n         x  text",
        "1,234,567   1,234.5  word word word wor…",
        "     2026  0.333333  null",
        "       -5     1e-09  日本語日本語日本語…",
    ]


def test_columns_that_do_not_fit_are_named(screen):
    shown = screen(30)
    columns = [(f"a{number}", "TIMESTAMP") for number in range(3)]
    assert print_rows(columns, [["2026-01-02 00:00:00"] * 3]) == ["a1", "a2"]
    assert shown()[1] == "2026-01-02 00:00:00"


def test_what_is_in_a_cell_cannot_steer_a_terminal(screen):
    shown = screen(80)
    print_rows([("\x1b]0;owned\x07", "VARCHAR")], [("\x1b[2J\u202e\r\nx",), ("[red]plain[/]",)])
    lines = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in shown()]
    assert lines == ["�]0;owned�", "�[2J�↵x", "[red]plain[/]"]


class Terminal(io.StringIO):
    """Standard output of a person."""

    def isatty(self):
        return True


@pytest.mark.parametrize("row_format", ["csv", "ndjson", "json"])
def test_no_format_steers_a_terminal(icedb, monkeypatch, row_format):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run(["query", "select '\x1b[2J\x9b31m\u202e' as text", "-o", row_format]) == 0
    assert "text" in terminal.getvalue()
    assert terminal.getvalue().replace("\n", "").isprintable()
    assert run(["query", "select 1", "-o", "parquet"]) == INVALID


def test_files_have_the_mode_of_the_user(icedb, tmp_path):
    old = os.umask(0o027)
    try:
        icedb("query", "select 1", "--to", str(tmp_path / "x.csv"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "x.csv").stat().st_mode) == 0o640


@pytest.mark.parametrize("form", [("-o", "ndjson"), ("-o", "json")])
def test_json_loses_no_column_and_no_digit(icedb, form):
    assert "several columns are called a" in icedb("query", "select 1 as a, n as a from events", *form, code=INVALID)
    wide = 2**127 - 1
    assert f'"{wide}"' in icedb("query", f"select {wide}::hugeint as h, [{wide}::hugeint] as l from events", *form)


def test_a_type_that_parquet_lacks_is_named(icedb, tmp_path):
    said = icedb("query", "select interval 3 month as i from events", "--to", str(tmp_path / "o.parquet"), code=INVALID)
    assert "cast that column" in said
    assert not list(tmp_path.glob("*o.parquet*"))


def test_an_output_that_is_a_link_or_a_pipe_stays_one(icedb, tmp_path):
    target, link, pipe = (tmp_path / name for name in ("real.csv", "link.csv", "pipe.csv"))
    target.write_text("old")
    link.symlink_to(target)
    icedb("query", "select 1 as a from events limit 1", "--to", str(link))
    assert link.is_symlink()
    assert target.read_text() == "a\n1\n"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    icedb("query", "select 1 as a from events limit 1", "--to", str(pipe))
    assert os.read(reader, 100) == b"a\n1\n"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("row_format", ["csv", "ndjson"])
def test_bytes_and_spans_of_time_are_texts_that_sql_reads_back(icedb, row_format):
    values = [
        "'a\\xAB\\x00\"\\x5C'::BLOB",
        "INTERVAL '2 days 03:04:05.25'",
        "INTERVAL '-30 minutes'",
        "INTERVAL '1 day'",
    ]
    columns = ", ".join(f"{value} AS c{number}" for number, value in enumerate(values))
    said = icedb("query", f"select {columns} from events limit 1", "-o", row_format)
    found = list(csv.reader(io.StringIO(said)))[1] if row_format == "csv" else list(json.loads(said).values())
    with duckdb.connect() as engine:
        for value, text in zip(values, found, strict=True):
            read_back, as_sql_has_it = engine.execute(
                f"select ?::{'BLOB' if 'BLOB' in value else 'INTERVAL'} = {value}, {value}::VARCHAR", [text]
            ).fetchone()
            assert read_back, text
            assert text == as_sql_has_it
