"""``icedb snapshot``, ``changes`` and ``watch`` on a folder: what they print, and one clear line when they cannot."""

import json
from datetime import UTC, datetime

import duckdb
import pytest
from icedb_log.clock import SystemClock
from icedb_log.commit.fence import FenceState, write_fence
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "DOUBLE"}


@pytest.fixture
def parquet(folder):
    parquet = ParquetWarehouse(folder)
    parquet.create("events", "d=day(ts)")
    return parquet


@pytest.fixture
def icedb(parquet, run_icedb):
    return run_icedb


def commit(parquet, day, event, **options):
    rows = f"select timestamp '{day} 10:00:00' as ts, '{event}' as event, 1.5::double as amount"
    return parquet.commit("events", rows, partition=f"d={day}", **options)


def test_where_leaves_out_files_and_the_statement_for_duckdb_applies_it(icedb, parquet):
    commit(parquet, "2026-01-02", "a")
    commit(parquet, "2026-01-03", "b")
    where = ("--where", "ts >= '2026-01-03' and event = 'b'")
    found = json.loads(icedb("snapshot", "events", *where, "-o", "json"))
    assert (found["file_count"], found["total_file_count"]) == (1, 2)
    assert len(icedb("snapshot", "events", *where, "-o", "paths").splitlines()) == 1
    assert "1 of 2" in icedb("snapshot", "events", *where)
    statement = icedb("snapshot", "events", "--where", "event = 'b'", "-o", "duckdb")
    assert statement.endswith(";\n")
    assert [row[1] for row in duckdb.sql(statement.removesuffix(";\n")).fetchall()] == ["b"]
    pasted = icedb("snapshot", "events", "--partition", "d=2026-01-03", "-o", "clickhouse")
    assert pasted.count(".parquet'") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--where", "event ="), "not understood"),
        (("--where", "event = 'a'; drop table events"), "one SQL condition"),
        (("--where", "nope = 1"), "nope"),
        (
            ("--where", "upper(event) = 'A'", "-o", "clickhouse"),
            "write the condition in ClickHouse's SQL around the statement",
        ),
        (("--as-of", "2200-01-01"), "in the future"),
        (("--as-of", "1999-01-01"), "the oldest time still readable"),
        (("--as-of", "tomorrow"), "is not a time"),
        (("--presign", "1h"), "directory"),
        (("--presign", "soon"), "is not a duration"),
        (("--min-commit", "x"), "batch id"),
        (("--partition", "nope=1"), "no partition field"),
        (("-o", "excel"), "prints no excel: give -o table, json, csv, ndjson, paths, duckdb or clickhouse"),
    ],
)
def test_what_is_wrong_is_one_clear_line(icedb, parquet, options, words):
    old = commit(parquet, "2026-01-02", "a")
    commit(parquet, "2026-01-02", "a", replaces=(old,), horizon_ms=1_000_000_000_000)
    said = icedb("snapshot", "events", *options, code=2)
    assert said.startswith("error: ")
    assert words in said
    assert said.count("error:") == 1


def test_a_table_that_is_not_there(icedb, parquet):
    for command in (("snapshot", "evnts"), ("changes", "evnts", "--since", "2026-01-01"), ("watch", "evnts")):
        assert "table 'evnts' does not exist; did you mean events?" in icedb(*command, code=3)


def test_changes_between_two_times(icedb, parquet):
    now = SystemClock().now_ms()
    first = commit(parquet, "2026-01-02", "a", time_ms=now - 60_000)
    commit(parquet, "2026-01-03", "b", time_ms=now - 40_000)
    merged = commit(parquet, "2026-01-02", "a", time_ms=now - 20_000, replaces=(first,))
    document = json.loads(icedb("changes", "events", "--since", str(now - 50_000), "-o", "json"))
    assert [file["path"] for file in document["removed"]] == [first.data_key]
    assert merged.data_key in {file["path"] for file in document["added"]}
    assert len(document["added"]) == 2
    assert (document["from_ms"], document["to_ms"], document["changed_columns"]) == (now - 50_000, None, {})
    shown = icedb("changes", "events", "--since", str(now - 50_000), "--until", str(now - 30_000))
    assert [line.split()[0] for line in shown.splitlines() if line.endswith(".parquet")] == ["+"]
    assert "0 files, 0 rows, 0 B" in shown
    began = datetime.fromtimestamp((now - 70_000) / 1000, UTC).isoformat()
    assert "ts TIMESTAMP, event VARCHAR, amount DOUBLE" in icedb("changes", "events", "--since", began)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--since"),
        (("--since", "yesterday"), "--since 'yesterday' is not a time"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "earlier"),
        (("--since", "2026-01-02", "--until", "2200-01-01"), "in the future"),
        (("--since", "1999-01-01"), "the oldest time still readable"),
    ],
)
def test_changes_that_cannot_be_told(icedb, parquet, options, words):
    old = commit(parquet, "2026-01-02", "a")
    commit(parquet, "2026-01-02", "a", replaces=(old,), horizon_ms=1_000_000_000_000)
    assert words in icedb("changes", "events", *options, code=2)


def test_watch_begins_with_each_table(icedb, parquet):
    parquet.create("broken")
    parquet.damage("broken")
    made = commit(parquet, "2026-01-02", "a")
    lines = icedb("watch", "--count", "2").splitlines()
    assert "broken" in lines[0]
    assert "cannot be read: " in lines[0]
    assert lines[1].split()[1:6] == ["events", "1", "files", "1", "rows"]
    event = json.loads(icedb("watch", "events", "events", "--count", "1", "-o", "ndjson"))
    assert (event["table"], event["file_count"], event["last_commit_ms"]) == ("events", 1, made.time_ms)
    assert event["problem"] is None


def test_a_query_may_stand_in_a_file_and_begin_with_a_comment(icedb, parquet, tmp_path):
    commit(parquet, "2026-01-02", "a")
    (tmp_path / "by_event.sql").write_text(
        "-- events by name\nselect event, count(*) as n from events group by event\n"
    )
    assert json.loads(icedb("query", f"@{tmp_path}/by_event.sql", "-o", "json"))["rows"] == [{"event": "a", "n": 1}]
    assert "cannot be read" in icedb("query", f"@{tmp_path}/nope.sql", code=2)


def test_a_query_says_that_rows_are_missing_where_a_log_file_is_lost(parquet, said_by_icedb):
    commit(parquet, "2026-01-02", "a")
    place = parquet.warehouse.table("events")
    assert "lost" not in said_by_icedb("query", "select event from events").err
    lost = f"{parquet.clock.now_ms():013d}_{'ab' * 16}"
    write_fence(
        place.store, place.paths.fence_key("ingest"), FenceState(9, "me", None, landed=(lost,)), etag=None,
        clock=parquet.clock,
    )  # fmt: skip
    said = " ".join(said_by_icedb("query", "select event from events").err.split())
    assert f"table events: 1 commit lost, so rows are missing; the first is {lost}" in said
    assert "icedb fsck events" in said
