"""The ``icedb`` command as somebody would type it: real processes, a real directory, real Parquet files."""

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot
from waiting import LIMIT_S, wait_until

COMMANDS = (
    "table create",
    "table alter",
    "table list",
    "table show",
    "views",
    "ingest",
    "snapshot",
    "query",
    "merge",
    "vacuum",
    "partitions",
    "quarantine list",
    "quarantine retry",
    "quarantine drop",
    "status",
)


def test_help_of_every_command_has_an_example(icedb):
    whole = icedb("--help").out
    assert "Exit codes: 0 done" in whole
    for command in COMMANDS:
        text = icedb(*command.split(), "--help").out
        usage, example, rest = text.split("\n\n", 2)
        assert usage.startswith(f"Usage: icedb {command} "), command
        assert example.startswith(f"  $ icedb {command}"), command
        assert "--output" in rest, command
        assert max(len(line) for line in rest.partition("Options:")[2].splitlines()) <= 80


def test_a_table_from_creation_to_query(icedb, parquet, tmp_path):
    created = icedb(
        *("table", "create", "events", "--partition", "d=day(ts)", "--partition", "u=bucket[4](user_id)"),
        *(
            "--sort",
            "event,ts",
            "--column",
            "user_id=varchar",
            "--set",
            "data_grace=60s",
            "--set",
            "log_grace=30s",
            "-o",
            "json",
        ),
    ).json
    assert created["created"]
    assert created["config"]["data_grace_ms"] == 60_000
    assert created["config"]["declared"] == {"user_id": "VARCHAR", "ts": "TIMESTAMP"}
    assert "exists already" in icedb("table", "create", "events", code=2).error
    listed = icedb("table", "list", "-o", "json").json["tables"]
    assert [(t["table"], t["partition"], t["sort"]) for t in listed] == [
        ("events", ["d=day(ts)", "u=bucket[4](user_id)"], ["event", "ts"])
    ]
    assert "d=day(ts), u=bucket[4](user_id)" in icedb("table", "show", "events").out

    rows = [{"ts": "2026-01-02T00:00:00Z", "event": "view", "user_id": "u", "n": n} for n in range(25)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in" / "b.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    (tmp_path / "in" / "notes.txt").write_text("not events")
    done = icedb("ingest", "events", str(tmp_path / "in"), "--batch-rows", "10", "-o", "json")
    assert (done.json["rows"], done.json["batches"]) == (50, 6)
    assert not done.json["woken"]
    assert done.err.count("warning: ") == 1
    assert "redis://127.0.0.1:1/0" in done.err.lower().replace("redis at ", "")
    assert "sweep" in done.err
    piped = icedb("ingest", "events", "-", "-o", "json", stdin=b'{"ts":"2026-01-02T00:00:00Z"}\n')
    assert piped.json["rows"] == 1
    state = icedb("status", "events", "-o", "json").json["tables"][0]
    assert (state["staged_batches"], state["live_files"], state["halted"]) == (7, 0, False)
    late = icedb("ingest", "events", "-", "--wait", "--timeout", "300ms", "-o", "json", stdin=b'{"a":1}\n', code=6)
    assert len(late.json["waiting"]) == 1
    assert "no ingest worker has taken them" in late.error

    parquet.commit("events", "select 'a' as event, 1.5 as amount from range(3)", partition="d=2026-01-02/u=1")
    parquet.commit("events", "select 'b' as event from range(4)", partition="d=2026-01-03/u=2")
    paths = icedb("snapshot", "events", "--partition", "d=2026-01-02", "-o", "paths").out.splitlines()
    assert len(paths) == 1
    assert Path(paths[0]).is_file()
    found = icedb("snapshot", "events", "-o", "json").json
    assert (found["row_count"], found["file_count"]) == (7, 2)
    shown = icedb("snapshot", "events").out
    assert found["snapshot_id"] in shown
    assert "d=2026-01-03/u=2" in shown
    sql = icedb("snapshot", "events", "-o", "duckdb").out
    assert sql.startswith("SELECT")
    answer = icedb(
        "query", "select event, sum(amount) as s, count(*) n from events group by all order by 1", "-o", "json"
    ).json
    assert answer["rows"] == [{"event": "a", "s": 4.5, "n": 3}, {"event": "b", "s": None, "n": 4}]
    assert answer["snapshots"] == {"events": found["snapshot_id"]}
    table = icedb("query", "select event, amount from events order by all limit 5", "--limit", "2")
    assert len(table.out.splitlines()) == 3
    assert "--limit shows more" in table.err
    assert icedb("vacuum", "events", "--dry-run", "-o", "json").json["data_files"] == []
    assert icedb("quarantine", "list", "events", "-o", "json").json["batches"] == []


def test_policies_of_a_table(icedb):
    created = icedb(
        *("table", "create", "events", "--column", "price:DOUBLE", "--column", "d:DATE", "--set", "evolution=widen"),
        *("--set", "on_bad_rows=quarantine_rows", "--set", "max_partitions_per_flush=7", "-o", "json"),
    ).json["config"]
    assert created["declared"] == {"price": "DOUBLE", "d": "DATE"}
    assert (created["evolution"], created["on_bad_rows"]) == ("widen", "quarantine_rows")
    assert created["max_partitions_per_flush"] == 7
    shown = icedb("table", "show", "events").out
    for words in ("widen", "quarantine_rows", "at most 7", "price"):
        assert words in shown


def test_a_table_is_altered(icedb, parquet):
    parquet.create("events", "d=day(ts)")
    parquet.commit("events", "select 1::bigint as n", partition="d=2026-01-02", schema={"n": "BIGINT", "s": "VARCHAR"})
    options = ("--set", "evolution=widen", "--column", "n:DOUBLE", "--column", "s:VARCHAR", "--set", "data_grace=7h")
    done = icedb("table", "alter", "events", *options, "-o", "json").json
    assert done["changed"]
    assert (done["config"]["evolution"], done["config"]["data_grace_ms"]) == ("widen", 7 * 3_600_000)
    assert done["config"]["declared"] == {"ts": "TIMESTAMP", "n": "DOUBLE", "s": "VARCHAR"}
    assert not icedb("table", "alter", "events", *options, "-o", "json").json["changed"]
    assert "is so already" in icedb("table", "alter", "events", *options).out
    config = icedb("table", "alter", "events", "--column", "s:off", "-o", "json").json["config"]
    assert config["declared"] == {"ts": "TIMESTAMP", "n": "DOUBLE"}
    for wrong, words in (
        ((), "nothing to change"),
        (("--set", "data_grace=1h"), "may only grow"),
        (("--column", "s:BIGINT"), "the log has 's' as VARCHAR"),
        (("--column", "ts:off"), "laid out by column 'ts'"),
        (("--column", "x:DATE", "--column", "x:off"), "'x' is given twice"),
    ):
        assert words in icedb("table", "alter", "events", *wrong, code=2).error
    assert "did you mean events?" in icedb("table", "alter", "evnts", "--column", "x:off", code=3).error


def test_a_directory_without_tables(icedb):
    assert icedb("table", "list", "-o", "json").json == {"tables": [], "unreadable": {}}
    assert "icedb table create" in icedb("table", "list").err
    assert icedb("status", "-o", "json").json == {"tables": []}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--nope"], 2, "No such option: --nope"),
        (["ingest", "events", "f", "--nope"], 2, "see `icedb ingest --help`"),
        (["nope"], 2, "No such command 'nope'"),
        (["ingest", "events"], 2, "Missing argument"),
        (["snapshot", "evnts"], 3, "did you mean events?"),
        (["ingest", "nope_at_all", "-"], 3, "icedb table create"),
        (["query", "select * from evnts"], 3, "did you mean events?"),
        (["query", "drop table events"], 2, "DROP is not allowed"),
        (["table", "create", "../x"], 2, "1 to 63 of a-z"),
        (["table", "create", "x" * 10_000], 2, "1 to 63 of a-z"),
        (["table", "create", "a\x1b[31mb"], 2, "1 to 63 of a-z"),
        (["table", "create", "t", "--partition", "day[3](ts)"], 2, "takes no width"),
        (["table", "create", "t", "--column", "a=INT"], 2, "use one of BIGINT"),
        (["table", "create", "t", "--column", "a"], 2, "write name:TYPE with one of BIGINT"),
        (["table", "create", "t", "--set", "evolution=any"], 2, "one of strict, add_columns, widen"),
        (["table", "create", "t", "--source", "a:VARCHAR"], 2, "with an insert_query only"),
        (["table", "create", "t", "--insert-query", "@nope.sql"], 2, "'nope.sql' cannot be read"),
        (["table", "create", "t", "--insert-query", "select 1"], 2, "--insert-query needs --source"),
        (
            ["table", "create", "t", "--insert-query", "select b from _rows", "--source", "a:VARCHAR"],
            2,
            'insert_query: Binder Error: Referenced column "b" not found',
        ),
        (
            ["query", "select event from events"],
            2,
            "table 'events' has no columns at this time but ts: nothing was committed",
        ),
        (["ingest", "events", "-", "--input-format", "xml"], 2, "'csv'"),
        (["ingest", "events", "-", "--retry", "soon"], 2, "--retry 'soon' is not a duration"),
        (["table", "create", "t", "--set", "data_grace=soon"], 2, "--set data_grace 'soon' is not a duration"),
        (
            ["table", "create", "t", "--set", "data_grace=59s"],
            2,
            "--set data_grace 59s is 59000 ms, below the floor of 60000",
        ),
        (
            ["table", "create", "t", "--set", "orphan_age=30m"],
            2,
            "--set orphan_age 30m is 1800000 ms, below the floor of",
        ),
        (["table", "alter", "events", "--set", "audit_retention=0s"], 2, "audit_retention_ms: 0 ms is below the floor"),
        (["table", "create", "t", "--set", "log_grace=7h"], 2, "log_grace_ms"),
        (["snapshot", "events", "--partition", "x=1"], 2, "its partition fields are d=day(ts)"),
        (["snapshot", "events", "--as-of", "yesterday"], 2, "2026-01-02T03:04:05Z"),
        (
            ["snapshot", "events", "-o", "parquet"],
            2,
            "give -o table, json, csv, ndjson, paths, duckdb or clickhouse",
        ),
        (["ingest", "events", "nope.ndjson"], 2, "nope.ndjson: no such file"),
        (["ingest", "events", "n" * 10_000], 2, "is not a usable file name"),
        (["merge", "events"], 4, "Redis at redis://127.0.0.1:1/0 does not answer"),
        (["vacuum", "events"], 4, "ICEDB_REDIS_URL"),
        (["--snapshot-address", "127.0.0.1:1", "snapshot", "events"], 4, "127.0.0.1:1 does not answer"),
        (["--snapshot-address", "nonsense", "snapshot", "events"], 2, "host:port"),
        (["--store", "ftp://x", "table", "list"], 2, "file:///absolute/directory or s3://"),
        (["--store", "s3://bucket/c", "table", "list"], 4, "http://127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(icedb, parquet, arguments, code, words):
    parquet.create("events", "d=day(ts)")
    s3 = {"ICEDB_S3_ENDPOINT": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    answer = icedb(*arguments, code=code, stdin=b"", **s3)
    assert words in answer.error
    assert answer.out == ""
    assert len(answer.error) < 700


def test_a_process_says_it_and_exits_with_the_code(process, parquet):
    parquet.create("events", "d=day(ts)")
    answer = process("snapshot", "evnts", code=3)
    assert "did you mean events?" in answer.error
    assert answer.out == ""


def test_a_process_takes_a_pipe_and_prints_json(process, parquet):
    parquet.create("events")
    answer = process("ingest", "events", "-", "-o", "json", stdin=b'{"n":1}\n')
    assert answer.json["rows"] == 1
    assert "Exit codes: 0 done" in process("--help").out


def test_no_store_is_named_with_the_setting(icedb):
    assert "ICEDB_STORE" in icedb("table", "list", code=2, ICEDB_STORE=None).error


def test_a_halted_table_does_not_hide_the_others(icedb, parquet):
    for name in ("bad", "good"):
        parquet.create(name)
    key = parquet.damage("bad")
    answer = icedb("status", "-o", "json", code=5)
    assert [(t["table"], t["halted"]) for t in answer.json["tables"]] == [("bad", True), ("good", False)]
    assert key in answer.error
    assert "halted" in icedb("status", code=5).out
    assert key in icedb("snapshot", "bad", code=5).error
    assert icedb("snapshot", "good", "-o", "json").json["file_count"] == 0


def test_without_a_store_the_service_says_the_same_of_all_tables(process, parquet, url):
    for name in ("bad", "good", "more"):
        parquet.create(name)
    parquet.damage("bad")
    rig = start_snapshot(open_warehouse(url))
    served = {"ICEDB_STORE": None, "ICEDB_SNAPSHOT_ADDRESS": rig.address}
    try:
        wait_until(lambda: rig.metric("icedb_snapshot_exporter_tables") == 3)
        here, there = (process("status", code=5, **settings) for settings in ({}, served))
        assert (there.out, there.error) == (here.out, here.error)
        here, there = (process("status", "-o", "json", code=5, **settings) for settings in ({}, served))
        assert [{*each} - {"age_ms"} for each in there.json["tables"]] == [{*each} for each in here.json["tables"]]
        assert "ICEDB_STORE" in process("status", "good", code=2, **served).error
    finally:
        rig.stop()


def test_a_table_without_a_readable_configuration_does_not_hide_the_others(icedb, parquet):
    parquet.create("good")
    parquet.warehouse.store.put(parquet.warehouse.table("bad").paths.config_key, b"{")
    answer = icedb("table", "list", "-o", "json", code=5)
    assert [each["table"] for each in answer.json["tables"]] == ["good"]
    assert list(answer.json["unreadable"]) == ["bad"]
    assert "bad/_icedb/table.json" in answer.error
    assert "good" in icedb("table", "list", code=5).out


@pytest.mark.parametrize("output", [["-o", "paths"], ["-o", "json"], []])
def test_output_may_be_cut_short(parquet, url, program, output):
    parquet.create("events")
    parquet.commit("events", "select 1 as amount")
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "ICEDB_STORE": url}
    try:
        done = subprocess.run(
            [program, "snapshot", "events", *output],
            env=environment,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
