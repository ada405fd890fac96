"""What beginners do wrong, and the one line that they read: each with its exit code."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from icedb_client import Client
from icedb_client.transport import CommitReport
from icedb_client.wakeups import WakeupSender
from icedb_log.names import QUEUES
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

PAGE = Path(__file__).parents[3] / "docs" / "first-errors.md"
ROW = b'{"ts":"2026-01-01T00:00:00Z","event":"a"}'
FILES = [
    ("utf16.ndjson", ROW.decode().encode("utf-16"), "is UTF-16: make it UTF-8 first, `iconv -f UTF-16 -t UTF-8`"),
    ("utf16.csv", "ts,event\n".encode("utf-16"), "is UTF-16: make it UTF-8 first"),
    (
        "commas.ndjson",
        ROW + b",\n" + ROW + b",\n",
        "line 1 is not JSON: it ends with a comma; write one object a line without commas",
    ),
    ("object.json", b'{\n"events":[' + ROW + b"]\n}\n", "`jq -c '.events[]'` of each one in a list called events"),
    ("rows.zip", b"PK\x03\x04\x14\x00", "is a zip archive: `unzip` it first"),
    ("rows.bz2", b"BZh91AY&SY\x01", "is compressed with bzip2: `bzip2 -d` it first"),
    ("rows.csv", ROW + b"\n", "named as CSV, and begins as JSON: say which it is, --input-format ndjson or csv"),
    ("text.ndjson", b"hello\n", "line 1 is not JSON, or no object: it begins with b'hello'"),
]
COMMANDS = [
    (("snapshot", "evnts"), 3, "table 'evnts' does not exist; did you mean events?"),
    (("query", "select * from evnts"), 3, "table 'evnts' does not exist; did you mean events?"),
    (("table", "create", "my-events"), 2, "beginning with a letter, such as my_events"),
    (("table", "create", "Clicks"), 2, "beginning with a letter, such as clicks"),
    (("table", "create", "t", "--partition", "d=dya(ts)"), 2, "there is no 'dya'; did you mean day"),
    (("table", "create", "t", "--partition", "d=day"), 2, "say of which column, day(ts)"),
    (("table", "create", "t", "--column", "n:DOUBEL"), 2, "type 'DOUBEL' is unknown; did you mean DOUBLE?"),
    (("table", "create", "t", "--column", "n:string"), 2, "type 'STRING' is unknown; here it is VARCHAR"),
    (("merge", "events"), 4, "`--local` does it in this process"),
    (("--redis-url", "redis://:hunter2@127.0.0.1", "table", "list"), 2, "a password on a command line shows in `ps`"),
    (("backup", "copies", "--target-secret", "hunter2"), 2, "No such option: --target-secret"),
    (("tabel", "list"), 2, "No such command 'tabel'. Did you mean 'table'?"),
]


BATCHES = [
    ("header.csv", b"2026-01-01T00:00:00Z,a\n2026-01-01T00:00:00Z,b\n", "columns '2026-01-01T00:00:00Z', 'a'"),
    ("semicolons.csv", b"ts;event\n2026-01-01T00:00:00Z;a\n", "its cells are separated by semicolons"),
    ("time.csv", b"time,event\n2026-01-01T00:00:00Z,a\n", "this batch has the columns 'event', 'time'"),
    ("events.ndjson", b'{"events":[' + ROW + b"]}\n", "this batch has the column 'events'"),
    ("seconds.ndjson", b'{"ts":1767225600}\n', "it looks like seconds (2026-01-01T00:00:00Z): send milliseconds"),
]
STORES = [
    ({"ICEDB_STORE": ""}, ("table", "list"), 2, "no store is set: give ICEDB_STORE (or --store)"),
    ({"ICEDB_STROE": "1"}, ("snapshot", "a"), 3, "warning: ICEDB_STROE is no setting; did you mean ICEDB_STORE?"),
    ({}, ("snapshot", "events"), 3, "table 'events' does not exist: file:///"),
    ({"ICEDB_S3_ENDPOINT": "127.0.0.1:9000"}, ("table", "list"), 2, "give a URL with its scheme"),
    ({"ICEDB_S3_ENDPOINT": "http://127.0.0.1:1"}, ("table", "list"), 4, "cannot connect; check that it runs"),
]
VARIABLES = [
    ("ICEDB_STROE", "did you mean ICEDB_STORE?"),
    ("ICEDB_STORE_URL", "did you mean ICEDB_STORE?"),
    ("ICEDB_S3_ENPOINT", "did you mean ICEDB_S3_ENDPOINT?"),
    ("ICEDB_S3_ENDPOINT_URL", "did you mean ICEDB_S3_ENDPOINT?"),
    ("ICEDB_REDIS_ULR", "did you mean ICEDB_REDIS_URL?"),
    ("ICEDB_SNAPSHOT_ADRESS", "did you mean ICEDB_SNAPSHOT_ADDRESS?"),
    ("ICEDB_SNAPSHOTADDRESS", "did you mean ICEDB_SNAPSHOT_ADDRESS?"),
    ("ICEDBSTORE", "did you mean ICEDB_STORE?"),
    ("ICEDB_S3_END_POINT", "did you mean ICEDB_S3_ENDPOINT?"),
]
OF_OTHERS = ("ICEDB_FLUSH_INTERVAL_MS", "ICEDB_READ_WAIT_MS", "ICEDB_RUN_DIR", "STORE")


@pytest.mark.parametrize(("name", "body", "said"), FILES, ids=[name for name, _, _ in FILES])
def test_a_file_that_is_no_rows(folder, run_icedb, tmp_path, name, body, said):
    run_icedb("table", "create", "events")
    (tmp_path / name).write_bytes(body)
    assert said in run_icedb("ingest", "events", str(tmp_path / name), code=2)


@pytest.mark.parametrize(("arguments", "code", "said"), COMMANDS, ids=[" ".join(each[0]) for each in COMMANDS])
def test_a_command_that_names_what_is_not_there(folder, run_icedb, arguments, code, said):
    run_icedb("table", "create", "events")
    assert said in run_icedb(*arguments, code=code)


def test_a_warehouse_without_tables_is_named(folder, run_icedb, tmp_path):
    said = run_icedb("snapshot", "events", code=3)
    assert f"table 'events' does not exist: file://{tmp_path}/warehouse has no table yet" in said
    assert "or correct ICEDB_STORE" in said


@pytest.mark.parametrize(("variable", "said"), VARIABLES)
def test_a_misspelt_variable_is_one_warning(cli_env, folder, said_by_icedb, variable, said):
    for name in OF_OTHERS:
        cli_env.setenv(name, "1")
    cli_env.setenv(variable, "1")
    shown = said_by_icedb("table", "list").err
    assert shown.startswith(f"warning: {variable} is no setting; {said}\n")
    assert shown.count("warning") == 1


def test_a_query_with_a_misspelt_column_names_those_that_are_close(folder, run_icedb, tmp_path):
    run_icedb("table", "create", "events", "--partition", "d=day(ts)")
    (tmp_path / "a.ndjson").write_bytes(ROW)
    assert "1 row accepted in 1 batch (" in run_icedb("ingest", "events", str(tmp_path / "a.ndjson"), "--commit")
    said = run_icedb("query", "select evnt from events", code=2)
    assert 'column "evnt" not found in FROM clause! Candidate bindings: "event"' in said


def test_without_a_worker_ingest_says_what_commits(folder, said_by_icedb, tmp_path):
    said_by_icedb("table", "create", "events", "--partition", "d=day(ts)")
    (tmp_path / "a.ndjson").write_bytes(ROW)
    said = said_by_icedb("ingest", "events", str(tmp_path / "a.ndjson")).err
    assert "no worker has been seen: `icedb work --once` commits them now" in said


@pytest.mark.parametrize(("waiting", "is_said"), [(1, True), (0, False)])
def test_a_wakeup_that_nobody_takes_is_said_after_five_seconds(
    folder, said_by_icedb, tmp_path, monkeypatch, waiting, is_said
):
    said_by_icedb("table", "create", "events", "--partition", "d=day(ts)")
    (tmp_path / "a.ndjson").write_bytes(ROW)
    waits = []
    look = SimpleNamespace(waiting=dict.fromkeys(QUEUES, waiting))
    monkeypatch.setattr(WakeupSender, "wake", lambda *_: True)
    monkeypatch.setattr("icedb_client.wakeups.look_at_redis", lambda *_, **__: look)

    def wait(_client, _table, ids, *, timeout_ms):
        waits.append(timeout_ms)
        return CommitReport((), (), tuple(ids)) if len(waits) == 1 else CommitReport(tuple(ids), (), ())

    monkeypatch.setattr(Client, "wait_committed", wait)
    said = said_by_icedb("ingest", "events", str(tmp_path / "a.ndjson"), "--wait", "--timeout", "1m")
    assert waits == [5000, 55_000]
    assert ("no ingest worker has taken the wake-up" in said.err) is is_said
    assert "1 batch committed" in said.out


def make_bad_batch(run_icedb, folder, name, body, *, table="events"):
    (folder / name).write_bytes(body)
    return run_icedb("ingest", table, str(folder / name), "--commit", code=1)


@pytest.mark.parametrize(("name", "body", "said"), BATCHES, ids=[name for name, _, _ in BATCHES])
def test_a_batch_that_is_no_events_of_the_table(folder, run_icedb, tmp_path, name, body, said):
    run_icedb("table", "create", "events", "--partition", "d=day(ts)")
    assert said in make_bad_batch(run_icedb, tmp_path, name, body)


def test_of_many_faults_of_a_batch_the_first_are_shown_and_where_the_others_are(folder, run_icedb, tmp_path):
    run_icedb("table", "create", "events", "--partition", "d=day(ts)")
    said = make_bad_batch(run_icedb, tmp_path, "bad.ndjson", b'{"event":"a"}\n' * 30)
    assert said.count("column 'ts' is missing or null") == 5
    assert re.search(r"… \d+ more: `icedb quarantine list events [0-9a-f-]{36}`", said)


def fail_by_settings(cli_env, run_icedb, settings, arguments, code):
    with cli_env.context() as env:
        for name, value in settings.items():
            env.setenv(name, value)
        if "ICEDB_S3_ENDPOINT" in settings:
            for name, value in (("ICEDB_STORE", "s3://lake/a"), *S3_KEYS):
                env.setenv(name, value)
        return run_icedb(*arguments, code=code)


S3_KEYS = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "a"), ("AWS_DEFAULT_REGION", "us-east-1")]


@pytest.mark.parametrize(("settings", "arguments", "code", "said"), STORES, ids=[said for *_, said in STORES])
def test_a_server_or_a_store_that_is_not_there(folder, cli_env, run_icedb, settings, arguments, code, said):
    assert said in fail_by_settings(cli_env, run_icedb, settings, arguments, code)


def test_the_page_quotes_what_is_printed(folder, cli_env, run_icedb, tmp_path):
    printed = [fail_by_settings(cli_env, run_icedb, *each[:3]) for each in STORES]
    run_icedb("table", "create", "events", "--partition", "d=day(ts)")
    printed += [make_bad_batch(run_icedb, tmp_path, name, body) for name, body, _ in BATCHES]
    run_icedb("table", "create", "prices", "--column", "price:DECIMAL(18,2)")
    printed.append(
        make_bad_batch(run_icedb, tmp_path, "price.ndjson", b'{"price":1}\n{"price":19.999}\n', table="prices")
    )
    for name, body, _ in FILES:
        (tmp_path / name).write_bytes(body)
        printed.append(run_icedb("ingest", "events", str(tmp_path / name), code=2))
    printed += [run_icedb(*arguments, code=code) for arguments, code, _ in COMMANDS]
    (tmp_path / "nested.ndjson").write_bytes(b'{"ts":"2026-01-01T00:00:00Z","props":{"price":3}}\n')
    run_icedb("ingest", "events", str(tmp_path / "nested.ndjson"), "--commit")
    printed.append(run_icedb("query", "select props.price from events", code=2))
    parquet = ParquetWarehouse(folder)
    parquet.create("short")
    parquet.commit("short", "select 1::bigint as n", schema={"n": "BIGINT"}, horizon_ms=1_000_000_000_000)
    printed.append(run_icedb("snapshot", "short", "--as-of", "1999-01-01", code=2))
    pages = re.split(r"^(?=## )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    elsewhere = ("## A store that refuses", "## A front end that refuses")  # with a server
    here = "".join(page for page in pages if not page.startswith(elsewhere))
    quotes = re.findall(r"^\| `([^`]+)` \|", here, re.MULTILINE)
    assert len(quotes) >= len(BATCHES) + len(STORES)
    plain = "\n".join(printed).replace("`", "")
    assert [quote for quote in quotes if not re.search(re.escape(quote).replace("…", ".*"), plain)] == []


def test_a_store_that_holds_no_lake_is_named(folder, cli_env, said_by_icedb, tmp_path):
    cli_env.setenv("ICEDB_STORE", str(tmp_path / "nolake"))
    assert f"there is no folder {tmp_path}/nolake: `icedb table create` makes it" in said_by_icedb("table", "list").err
    (tmp_path / "nolake").mkdir()
    said = said_by_icedb("table", "list").err
    assert f"no tables yet in file://{tmp_path}/nolake; create one" in said
    assert "or correct ICEDB_STORE" in said


def test_icedb_work_says_where_it_begins_also_without_a_terminal(folder, said_by_icedb, monkeypatch):
    monkeypatch.setattr("icedb.cli.work.Worker.work", lambda *_, **__: None)
    assert "working on file://" in said_by_icedb("work").err
