"""What ``icedb top`` shows of tables that are there, late, halted, gone; in 80 columns, without colour, in a pipe."""

import re
from dataclasses import replace

import orjson
import pytest
from icedb.cli import top as top_module
from icedb.cli.top import _Reading
from icedb.cli.top_reads import ROUND_TABLES, Overview, Row, open_source
from icedb.cli.top_screen import (
    COLUMNS,
    Screen,
    Size,
    count_page_lines,
    count_table_lines,
    draw_all,
    draw_page,
    draw_page_lines,
)
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.clean.leases import acquire_lease
from icedb_log.clean.pins import create_pin
from icedb_log.errors import Unavailable
from icedb_log.log.fence import acquire_fence
from icedb_log.table.status import Health
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import ScriptedStore
from icedb_sim.tables.small_table import SmallTable

STYLE = re.compile(r"\x1b\[[0-9;]*m")
NARROW = Size(80, 24)
OK = Health("ok", "ok")


def plain(picture):
    return STYLE.sub("", picture).split("\n")


def rows_of(picture):
    return [line.split()[0] for line in plain(picture)[2:] if line.strip()]


@pytest.fixture
def table():
    return SmallTable()


@pytest.fixture
def source(table):
    client = Client(
        settings=ClientSettings(store="file:///unused"), warehouse=Warehouse(table.store, "wh"), clock=table.clock
    )
    return open_source(client)


def beside(table, name):
    return SmallTable(store=table.store.inner, name=name)


def some(*names, **given):
    return tuple(Row(name, OK, **given) for name in names)


def test_all_tables_fit_into_80_columns_and_24_lines_with_all_that_matters():
    long = Row(
        "a" * 63,
        Health("warn", "quarant.", ("why",)),
        10**15,
        2**49,
        999_999,
        10**9,
        99_999,
        5,
        5,
        5,
        "slow",
        10**12 - 10**10,
    )
    overview = Overview((long, *some(*(f"t{number:02}" for number in range(50)))), 10**12)
    lines = plain(draw_all(overview, Screen(), NARROW, title="icedb top  s3://a-bucket/with/a/long/prefix/" + "x" * 99))
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    heads = lines[1].split()
    assert heads == ["table", "health▲", "rows", "size", "files", "lag", "backlog", "press.", "commit"]
    assert lines[2].split()[1:] == ["quarant.", "1000T", "512.0", "TiB", "999k", "11", "d", "99k", "slow", "115", "d"]
    assert lines[2].split()[0].endswith("…")
    assert sum(line.startswith("t") for line in lines[2:]) == count_table_lines(NARROW) - 1
    assert "q quit" in lines[-1]
    assert any(line.startswith("a" * 60) for line in lines[-6:]), "the reasons of the marked table"


def test_a_wide_terminal_shows_more_and_a_narrow_one_breaks_nothing():
    overview = Overview(some("events", row_count=1, quarantined=3), 1)
    wide = plain(draw_all(overview, Screen(), Size(200, 30), title="icedb top"))
    assert wide[1].split()[-3:] == ["staged", "quarant.", "logs"]
    assert len(wide) == 30
    for columns, lines in ((40, 10), (20, 5), (10, 3), (1, 1)):
        found = plain(draw_all(overview, Screen(), Size(columns, lines), title="icedb top"))
        assert len(found) <= max(lines, 2)
        assert max(map(len, found)) <= columns


def test_without_colour_words_say_the_same():
    bad = Row("events", Health("bad", "halted", ("no such column",)))
    overview = Overview((bad, *some("other")), 1)
    colored = draw_all(overview, Screen(), NARROW, title="t")
    bare = draw_all(overview, Screen(), replace(NARROW, has_color=False), title="t")
    assert "\x1b[1;31m" in colored
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", bare)
    assert plain(colored) == plain(bare)
    assert "halted" in bare
    assert "events: no such column" in bare
    assert "1 bad" in plain(bare)[0]


def test_what_others_wrote_cannot_steer_the_terminal():
    evil = Row("events", Health("bad", "halted", ("\x1b]0;owned\x07[bold]\x9b31m\r\nx",)))
    shown = draw_all(Overview((evil,), 1, problem=""), Screen(), replace(NARROW, has_color=False), title="\x1b[2Jt")
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
    assert "\x9b" not in shown
    assert "[bold]" in shown


def test_tables_are_sorted_by_each_column_and_back_and_those_without_come_last():
    rows = (
        Row("b", Health("bad", "stop"), 5, 50, 1, 100, 7, 0, 0, 3, "stop", 1000),
        Row("a", OK, 9, 10, 3, None, 2, 8, 0, 9, "none", 3000),
        Row("c", Health("warn", "slow"), 7, 90, 2, 300, 1, 4, 1, 6, "slow", 2000),
        Row("d"),
    )
    by = {"t": "abcd", "h": "bcad", "r": "acbd", "b": "cbad", "f": "acbd", "l": "cbad", "w": "bacd", "p": "bcad"}
    by |= {"c": "acbd", "s": "acbd", "x": "cabd", "g": "acbd"}
    assert set(by) == {column.key for column in COLUMNS}
    for key, names in by.items():
        screen = Screen(sort="").sort_by(key)
        assert "".join(row.table for row in screen.sorted(rows)) == names, key
        told = [row for row in rows if next(c for c in COLUMNS if c.key == key).value(row) is not None]
        back = [row.table for row in screen.sort_by(key).sorted(told)]
        if key != "x":  # of one value by name, either way
            assert back == [row.table for row in screen.sorted(told)][::-1], key


def test_the_marked_table_stays_on_the_screen_and_marked_when_others_come_and_go():
    rows = some(*(f"t{number:03}" for number in range(100)))
    overview, screen = Overview(rows, 1), Screen(sort="t")
    for _ in range(50):
        screen = screen.move(rows, 1).seen(rows, 16)
    assert screen.chosen == "t050"
    assert "t050" in rows_of(draw_all(overview, screen, NARROW, title="t"))
    assert screen.first == 35
    assert screen.move(rows, 10**9).chosen == "t099"
    assert screen.move(rows, -(10**9)).seen(rows, 16).first == 0
    fewer = rows[45:60]
    assert screen.seen(fewer, 16).chosen == "t050"
    assert screen.seen(fewer, 16).first == 0
    assert screen.seen(rows[:10], 16).chosen == "t000"
    assert Screen().seen((), 16).chosen == ""
    assert Screen().move((), 1) == Screen()


def test_figures_are_those_of_status_and_what_cannot_be_read_hides_nothing(table, source):
    table.append(1, 2)
    table.stage([{"id": 3}])
    other = beside(table, "other")
    table.store.put(f"{other.paths.log_prefix}0000000000001_x.jsonl", b"nonsense")
    table.store.put("wh/stray/file", b"no table")
    fence = acquire_fence(table.opened("merger@host:7"), "merge")
    overview = source.read_all()
    other_row, row = overview.rows
    state = table.status()
    assert (row.row_count, row.file_count, row.size_bytes) == (2, 1, state.live_bytes)
    assert (row.staged_batches, row.last_commit_ms, row.pressure) == (1, state.last_commit_ms, "none")
    assert (other_row.table, other_row.health.word) == ("other", "halted")
    assert [row.table for row in overview.rows] == ["other", "t"]
    shown = plain(draw_all(overview, Screen(), NARROW, title="t"))
    assert "merger@host:7 replaces data files of t" in shown
    fence.release()
    assert not source.read_all().rows[1].workers


def test_a_round_has_a_bounded_cost_and_reads_what_is_seen_and_then_the_oldest(table):
    names = [f"t{number:03}" for number in range(150)]
    for name in names:
        beside(table, name)
    store = ScriptedStore(table.store.inner)
    client = Client(
        settings=ClientSettings(store="file:///unused"), warehouse=Warehouse(store, "wh"), clock=table.clock
    )
    source = open_source(client)
    for left in (151 - ROUND_TABLES, 151 - 2 * ROUND_TABLES, 0):
        overview = source.read_all()
        assert (len(overview.rows), overview.unread_count) == (151, left)
    store.calls.clear()
    source.read_all(first=["t149", "t000", "gone"])
    read = {call.key.split("/")[1] for call in store.calls if call.key.startswith("wh/t")}
    assert len(read) == ROUND_TABLES
    assert {"t149", "t000"} <= read
    assert len(store.calls) <= 1 + 16 * ROUND_TABLES


def test_of_a_log_only_what_is_new_is_fetched_by_the_next_round(table, source):
    for number in range(5):
        table.append(number)
    source.read_all()
    table.append(9)
    table.store.calls.clear()
    assert source.read_all().rows[0].row_count == 6
    assert len([key for key in table.store.keys_of("get") if "/_log/" in key]) == 1
    table.store.calls.clear()
    source.read_all()
    assert not [key for key in table.store.keys_of("get") if "/_log/" in key]


def test_a_page_tells_commits_what_waits_and_why_and_who_holds_what(table, source):
    for number in range(3):
        table.append(number)
    lease = acquire_lease(table.opened(), ttl_ms=600_000, holder="spark")
    table.merge(full=True)
    table.append(7, p="b")
    table.stage_bytes(b'{"id": 1}\nnonsense')
    table.flush()
    create_pin(table.opened(), "q3")
    table.clock.advance(120_000)
    page = source.read_page("t")
    text = "\n".join(draw_page_lines(page, replace(NARROW, has_color=False)))
    words = " ".join(STYLE.sub("", text).split())
    assert "Last commits" in words
    assert re.search(r"merge - \+1 \+3 [0-9.]+ B -3 -3", words)
    assert "2 partitions - one file only" in words
    assert re.search(r"kept by who objects let go .*lease [0-9a-f]+ \(spark\) \d+ in \d+ (s|min)", words)
    assert f"{lease.lease_id} spark 2 min 7 min" in words
    assert re.search(r"Quarantine: 1 waiting for a person .* 2 min line 1: partition column p is", words)
    assert re.search(r"q3 active .* unpinned", words)
    document = page.to_json()
    assert [commit["what"] for commit in document["commits"]] == ["refusal", "append", "merge", *["append"] * 3]
    assert document["pins"][0]["name"] == "q3"
    assert document["quarantine"][0]["kind"] == "batch"
    assert document["kept"]


def test_a_page_is_scrolled_no_further_than_its_end(table, source):
    for number in range(9):
        table.append(number, p=f"p{number}")
    page = source.read_page("t")
    size = Size(80, 10, has_color=False)
    last = count_page_lines(page, size)
    assert last > 0
    first = plain(draw_page(page, Screen(page="t"), size, title="top"))
    end = plain(draw_page(page, Screen(page="t", scroll=10**6), size, title="top"))
    assert len(first) == len(end) == 10
    assert first[0].startswith("top  t  ok")
    assert end[-2] == plain("\n".join(draw_page_lines(page, size)))[-1]
    assert f"lines {last + 1} to" in end[-1]


def test_a_page_of_a_halted_table_says_why(table, source):
    table.store.put(f"{table.paths.log_prefix}0000000000001_x.jsonl", b"nonsense")
    words = " ".join(" ".join(draw_page_lines(source.read_page("t"), NARROW)).split())
    assert "0000000000001_x.jsonl" in words
    assert "icedb fsck t" in words


def test_what_was_read_stays_when_the_store_goes_away(table, source, monkeypatch):
    table.append(1)
    reading = _Reading(source, every_ms=0, on_change=lambda: None)
    rounds = iter((None, Unavailable("no route"), None))

    def read_all(*, first=()):
        error = next(rounds)
        if error is None:
            return type(source).read_all(source, first=first)
        raise error

    seen = []

    def end():
        seen.append(reading.overview)
        if len(seen) == 3:
            reading.stop()

    reading._on_change = end
    monkeypatch.setattr(source, "read_all", read_all)
    reading._run()
    assert [len(each.rows) for each in seen] == [1, 1, 1]
    assert [each.problem for each in seen] == ["", "no route", ""]
    assert "not read: no route" in draw_all(seen[1], Screen(), NARROW, title="t")


def test_without_a_terminal_there_is_one_picture(lend, table, run_icedb, monkeypatch):
    table.append(1, 2)
    lend(table)
    for arguments in (("top",), ("top", "--once"), ("top", "--sort", "rows")):
        lines = run_icedb(*arguments).splitlines()
        assert lines[1].split()[:3] == ["t", "ok", "2"]
    assert "Last commits" in run_icedb("top", "t")
    assert "is none of" in run_icedb("top", "--sort", "colour", code=2)
    assert "does not exist" in run_icedb("top", "nothing", code=3)
    monkeypatch.setattr(top_module, "_Terminal", None)
    assert "\x1b" not in run_icedb("top")


def test_json_is_a_line_for_each_table_again_after_each_pause(lend, table, run_icedb):
    table.append(1)
    lend(table)
    (line,) = run_icedb("top", "--json", "--once").splitlines()
    document = orjson.loads(line)
    assert (document["table"], document["live_rows"], document["health"], document["reasons"]) == ("t", 1, "ok", [])
    (line,) = run_icedb("top", "t", "--json", "--once").splitlines()
    assert orjson.loads(line)["commits"][0]["what"] == "append"
    pauses = []

    def sleep(duration_ms):
        pauses.append(duration_ms)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    table.clock.sleep_ms = sleep
    run_icedb("top", "--json", "--every", "5s", code=130)
    assert pauses == [5000] * 3
