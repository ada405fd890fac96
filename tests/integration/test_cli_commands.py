"""The ``icedb`` command as somebody would type it: real processes, a real directory, real Parquet files."""

import gzip
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_client.cli.app import run
from icedb_client.testing.parquet_warehouse import ParquetWarehouse
from icedb_log.errors import Unavailable
from icedb_log.ingest.pressure import Pressure, publish_pressure
from icedb_log.ingest.quarantine import quarantine_batch
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import RejectedBatch
from icedb_log.storage.local_store import LocalObjectStore
from icedb_log.storage.stores import open_warehouse
from pyarrow import ipc

ICEDB = Path(sys.executable).parent / "icedb"
NO_REDIS = "redis://127.0.0.1:1/0"
COMMANDS = (
    "table create",
    "table alter",
    "table list",
    "table show",
    "view list",
    "view detach",
    "view attach",
    "ingest",
    "snapshot",
    "query",
    "merge",
    "vacuum",
    "partitions list",
    "partitions drop",
    "partitions expire",
    "quarantine list",
    "quarantine show",
    "quarantine retry",
    "quarantine drop",
    "status",
    "version",
)


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/warehouse"


@pytest.fixture
def icedb(url, monkeypatch, capfdbinary):
    """Runs the command in this process (a process of its own costs a second): same entry, same output."""

    def icedb(*arguments, code=0, stdin=None, **environment):
        settings = {"ICEDB_STORE": url, "ICEDB_REDIS_URL": NO_REDIS, "COLUMNS": "80", **environment}
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.startswith(("ICEDB_", "AWS_")):
                    patch.delenv(name)
            for name, value in settings.items():
                if value is not None:
                    patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
            capfdbinary.readouterr()
            try:
                found = run(arguments)
            finally:
                root.handlers, root.level = handlers, level
        captured = capfdbinary.readouterr()
        answer = Answer(captured.out.decode(), captured.err.decode())
        assert found == code, (found, answer.out, answer.err)
        return answer

    return icedb


@pytest.fixture
def process(url):
    """Runs the command as a process of its own."""

    def process(*arguments, code=0, stdin=None, **environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ICEDB_", "AWS_"))}
        settings = {"ICEDB_STORE": url, "ICEDB_REDIS_URL": NO_REDIS, "COLUMNS": "80", **environment}
        done = subprocess.run(
            [ICEDB, *arguments],
            check=False,
            input=stdin,
            capture_output=True,
            timeout=120,
            env={**inherited, **{name: value for name, value in settings.items() if value is not None}},
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == code, (done.returncode, done.stdout.decode(), done.stderr.decode())
        return Answer(done.stdout.decode(), done.stderr.decode())

    return process


class Answer:
    def __init__(self, out, err):
        self.out = out
        self.err = err

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self):
        """The one error line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def parquet(url):
    return ParquetWarehouse(open_warehouse(url))


def test_help_of_every_command_has_an_example(icedb):
    whole = icedb("--help").out
    assert "Exit codes: 0 done" in whole
    for command in COMMANDS:
        text = icedb(*command.split(), "--help").out
        assert f"Example: icedb {command}" in text, command
        assert "--json" in text, command
        assert max(len(line) for line in text.splitlines()) <= 80


def test_a_table_from_creation_to_query(icedb, parquet, tmp_path):
    created = icedb(
        *("table", "create", "events", "--partition", "d=day(ts)", "--partition", "u=bucket[4](user_id)"),
        *("--sort", "event,ts", "--column", "user_id=varchar", "--data-grace", "60s", "--log-grace", "30s", "--json"),
    ).json
    assert created["created"]
    assert created["config"]["data_grace_ms"] == 60_000
    assert created["config"]["declared"] == {"user_id": "VARCHAR", "ts": "TIMESTAMP"}
    assert "exists already" in icedb("table", "create", "events", code=2).error
    listed = icedb("table", "list", "--json").json["tables"]
    assert [(t["table"], t["partition"], t["sort"]) for t in listed] == [
        ("events", ["d=day(ts)", "u=bucket[4](user_id)"], ["event", "ts"])
    ]
    assert "d=day(ts), u=bucket[4](user_id)" in icedb("table", "show", "events").out

    rows = [{"ts": "2026-01-02T00:00:00Z", "event": "view", "user_id": "u", "n": n} for n in range(25)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in" / "b.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    (tmp_path / "in" / "notes.txt").write_text("not events")
    done = icedb("ingest", "events", str(tmp_path / "in"), "--batch-rows", "10", "--json")
    assert (done.json["rows"], done.json["batches"]) == (50, 6)
    assert not done.json["woken"]
    assert done.err.count("warning: ") == 1
    assert "redis://127.0.0.1:1/0" in done.err.lower().replace("redis at ", "")
    assert "sweep" in done.err
    piped = icedb("ingest", "events", "-", "--json", stdin=b'{"ts":"2026-01-02T00:00:00Z"}\n')
    assert piped.json["rows"] == 1
    state = icedb("status", "events", "--json").json["tables"][0]
    assert (state["staged_batches"], state["live_files"], state["halted"]) == (7, 0, False)
    late = icedb("ingest", "events", "-", "--wait", "--timeout", "300ms", "--json", stdin=b'{"a":1}\n', code=6)
    assert len(late.json["waiting"]) == 1
    assert "is an ingest worker running?" in late.error

    parquet.commit("events", "select 'a' as event, 1.5 as amount from range(3)", partition="d=2026-01-02/u=1")
    parquet.commit("events", "select 'b' as event from range(4)", partition="d=2026-01-03/u=2")
    paths = icedb("snapshot", "events", "--partition", "d=2026-01-02", "--format", "paths").out.splitlines()
    assert len(paths) == 1
    assert Path(paths[0]).is_file()
    found = icedb("snapshot", "events", "--json").json
    assert (found["row_count"], found["file_count"]) == (7, 2)
    shown = icedb("snapshot", "events").out
    assert found["snapshot_id"] in shown
    assert "d=2026-01-03/u=2" in shown
    sql = icedb("snapshot", "events", "--format", "duckdb").out
    assert sql.startswith("SELECT")
    answer = icedb(
        "query", "select event, sum(amount) as s, count(*) n from events group by all order by 1", "--json"
    ).json
    assert answer["rows"] == [{"event": "a", "s": 4.5, "n": 3}, {"event": "b", "s": None, "n": 4}]
    assert answer["snapshots"] == {"events": found["snapshot_id"]}
    table = icedb("query", "select event, amount from events order by all limit 5", "--limit", "2")
    assert len(table.out.splitlines()) == 3
    assert "--limit shows more" in table.err
    assert icedb("vacuum", "events", "--dry-run", "--json").json["data_files"] == []
    assert icedb("quarantine", "list", "events", "--json").json["batches"] == []


def test_policies_and_bounds_of_a_table(icedb):
    created = icedb(
        *("table", "create", "events", "--column", "price:DOUBLE", "--column", "d:DATE", "--evolution", "widen"),
        *("--on-bad-rows", "quarantine_rows", "--max-partitions-per-flush", "7", "--log-files-slow", "10"),
        *("--log-files-stop", "20", "--backlog-files-slow", "30", "--backlog-files-stop", "40", "--json"),
    ).json["config"]
    assert created["declared"] == {"price": "DOUBLE", "d": "DATE"}
    assert (created["evolution"], created["on_bad_rows"]) == ("widen", "quarantine_rows")
    assert created["max_partitions_per_flush"] == 7
    assert (created["log_files_slow"], created["log_files_stop"]) == (10, 20)
    assert (created["backlog_files_slow"], created["backlog_files_stop"]) == (30, 40)
    shown = icedb("table", "show", "events").out
    for words in ("widen", "quarantine_rows", "at most 7", "10 log files, 30 files", "20 log files, 40 files", "price"):
        assert words in shown


def test_a_table_is_altered(icedb, parquet):
    parquet.create("events", "d=day(ts)")
    parquet.commit("events", "select 1::bigint as n", partition="d=2026-01-02", schema={"n": "BIGINT", "s": "VARCHAR"})
    options = ("--evolution", "widen", "--column", "n:DOUBLE", "--column", "s:VARCHAR", "--data-grace", "7h")
    done = icedb("table", "alter", "events", *options, "--json").json
    assert done["changed"]
    assert (done["config"]["evolution"], done["config"]["data_grace_ms"]) == ("widen", 7 * 3_600_000)
    assert done["config"]["declared"] == {"ts": "TIMESTAMP", "n": "DOUBLE", "s": "VARCHAR"}
    assert not icedb("table", "alter", "events", *options, "--json").json["changed"]
    assert "is so already" in icedb("table", "alter", "events", *options).out
    config = icedb("table", "alter", "events", "--undeclare", "s", "--json").json["config"]
    assert config["declared"] == {"ts": "TIMESTAMP", "n": "DOUBLE"}
    for wrong, words in (
        ((), "nothing to change"),
        (("--data-grace", "1h"), "may only grow"),
        (("--column", "s:BIGINT"), "the log has 's' as VARCHAR"),
        (("--undeclare", "ts"), "laid out by column 'ts'"),
        (("--column", "x:DATE", "--undeclare", "x"), "in --column and in --undeclare"),
        (("--log-files-slow", "900"), "log_files_slow < log_files_stop"),
    ):
        assert words in icedb("table", "alter", "events", *wrong, code=2).error
    assert "did you mean events?" in icedb("table", "alter", "evnts", "--undeclare", "x", code=3).error


def test_every_format_is_ingested(icedb, parquet, tmp_path):
    parquet.create("events")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text('n,t\n1,"x\ny"\n2,z\n')
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"n,t\n3,x\n"))
    (folder / "c.json").write_text('[{"n": 4}, {"n": 5}]')
    (folder / "d.jsonl").write_text('{"n": 6}\n')
    pq.write_table(pa.table({"n": [7, 8]}), folder / "e.parquet")
    with ipc.new_file(folder / "f.arrow", pa.schema({"n": pa.int64()})) as writer:
        writer.write_table(pa.table({"n": [9]}))
    (folder / "notes.txt").write_text("not events")
    done = icedb("ingest", "events", str(folder), "--json").json
    assert (done["rows"], done["batches"]) == (9, 6)
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events")
    staged = list_staged(store, paths).batches
    assert Counter(batch.format for batch in staged) == {"csv": 2, "ndjson": 2, "parquet": 1, "arrow": 1}
    assert icedb("ingest", "events", "-", "--json", stdin=(folder / "e.parquet").read_bytes()).json["rows"] == 2
    assert icedb("ingest", "events", "-", "--format", "csv", "--json", stdin=b"n\n1\n2\n").json["rows"] == 2
    error = icedb("ingest", "events", "-", stdin=b"n\n1\n2\n", code=2).error
    assert "standard input: line 1 is not JSON" in error
    assert "--format" in error


def test_a_table_under_pressure_makes_ingest_wait_and_says_so(icedb, parquet):
    parquet.create("events")
    paths = parquet.warehouse.table("events")
    publish_pressure(parquet.warehouse.store, paths, Pressure("stop", 60.0, "800 log files", 60), clock=parquet.clock)
    answer = icedb("ingest", "events", "-", "--retry", "200ms", stdin=b'{"n":1}\n', code=4)
    assert "800 log files" in answer.error
    assert answer.err.count("waiting 100 ms before the batch is sent again (--retry bounds this)") == 1
    assert icedb("status", "events", "--json").json["tables"][0]["staged_batches"] == 0
    parquet.warehouse.store.delete([paths.pressure_key])
    assert icedb("ingest", "events", "-", "--json", stdin=b'{"n":1}\n').json["rows"] == 1


def test_a_directory_without_tables(icedb):
    assert icedb("table", "list", "--json").json == {"tables": [], "unreadable": {}}
    assert "icedb table create" in icedb("table", "list").err
    assert icedb("status", "--json").json == {"tables": []}


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
        (["table", "create", "t", "--evolution", "any"], 2, "'strict', 'add_columns', 'widen'"),
        (["table", "create", "t", "--source", "a:VARCHAR"], 2, "with an insert_query only"),
        (["table", "create", "t", "--insert-query", "@nope.sql"], 2, "'nope.sql' cannot be read"),
        (["table", "create", "t", "--insert-query", "select 1"], 2, "--insert-query needs --source"),
        (
            ["table", "create", "t", "--insert-query", "select a from _rows", "--source", "a:VARCHAR"],
            4,
            "has to be checked by an ingest worker",
        ),
        (["table", "create", "t", "--log-files-slow", "900"], 2, "log_files_slow < log_files_stop must hold"),
        (["query", "select event from events"], 2, "table 'events' has no columns at this time"),
        (["ingest", "events", "-", "--format", "xml"], 2, "'csv'"),
        (["ingest", "events", "-", "--retry", "soon"], 2, "--retry 'soon' is not a duration"),
        (["table", "create", "t", "--data-grace", "soon"], 2, "--data-grace 'soon' is not a duration"),
        (["table", "create", "t", "--data-grace", "59s"], 2, "--data-grace 59s is 59000 ms, below the floor of 60000"),
        (["table", "create", "t", "--orphan-age", "30m"], 2, "--orphan-age 30m is 1800000 ms, below the floor of"),
        (["table", "alter", "events", "--audit-retention", "0s"], 2, "audit_retention_ms: 0 ms is below the floor"),
        (["table", "create", "t", "--log-grace", "7h"], 2, "log_grace_ms"),
        (["snapshot", "events", "--partition", "x=1"], 2, "its partition fields are d=day(ts)"),
        (["snapshot", "events", "--as-of", "yesterday"], 2, "2026-01-02T03:04:05Z"),
        (["snapshot", "events", "--format", "xml"], 2, "'table', 'paths', 'duckdb', 'json'"),
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


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ingest", "events", "f", "--nope"], 2, "No such option: --nope"),
        (["ingest", "events", "nope.ndjson"], 2, "nope.ndjson: no such file"),
        (["snapshot", "evnts"], 3, "did you mean events?"),
        (["--snapshot-address", "127.0.0.1:1", "snapshot", "events"], 4, "127.0.0.1:1 does not answer"),
    ],
)
def test_a_process_says_it_and_exits_with_the_code(process, parquet, arguments, code, words):
    parquet.create("events", "d=day(ts)")
    answer = process(*arguments, code=code)
    assert words in answer.error
    assert answer.out == ""


def test_a_process_takes_a_pipe_and_prints_json(process, parquet):
    parquet.create("events")
    answer = process("ingest", "events", "-", "--json", stdin=b'{"n":1}\n')
    assert answer.json["rows"] == 1
    assert "Exit codes: 0 done" in process("--help").out


def test_no_store_is_named_with_the_setting(icedb):
    assert "ICEDB_STORE" in icedb("table", "list", code=2, ICEDB_STORE=None).error


def test_a_bad_line_names_the_file_and_how_to_go_on(icedb, parquet, tmp_path):
    parquet.create("events")
    lines = [b'{"n": %d}\n' % n for n in range(10)]
    lines[7] = b'{"n": 7\n'
    path = tmp_path / "bad.ndjson"
    path.write_bytes(b"".join(lines))
    error = icedb("ingest", "events", str(path), "--batch-rows", "3", code=2).error
    assert "bad.ndjson: line 8 is not JSON" in error
    assert "6 rows before it are accepted in 2 batches" in error
    assert "--from-row 7" in error
    lines[7] = b'{"n": 7}\n'
    path.write_bytes(b"".join(lines))
    assert icedb("ingest", "events", str(path), "--from-row", "7", "--json").json["rows"] == 4


def test_a_batch_without_an_answer_can_be_sent_again_under_its_id(icedb, parquet, tmp_path, monkeypatch):
    parquet.create("events")
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(5)))
    put = LocalObjectStore.put_if_absent
    calls = []

    def lose_the_second(store, key, body):
        calls.append(key)
        if len(calls) == 1:
            return put(store, key, body)
        if len(calls) == 2:
            put(store, key, body)
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "put_if_absent", lose_the_second)
        answer = icedb("ingest", "events", str(path), "--batch-rows", "2", "--retry", "150ms", code=4)
    assert "2 rows before it are accepted in 1 batches; this one may be accepted, too" in answer.error
    options = re.search(r"--from-row 3 --batch-id [0-9a-f-]{36}", answer.error)[0].split()
    done = icedb("ingest", "events", str(path), "--batch-rows", "2", *options, "--json").json
    assert (done["rows"], done["batches"]) == (3, 2)
    assert icedb("status", "events", "--json").json["tables"][0]["staged_batches"] == 3


def test_an_interrupt_says_what_is_accepted(icedb, parquet, tmp_path, monkeypatch):
    parquet.create("events")
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"n": 1}\n' * 5)
    put = LocalObjectStore.put_if_absent
    calls = []

    def interrupt_the_second(store, key, body):
        calls.append(key)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return put(store, key, body)

    monkeypatch.setattr(LocalObjectStore, "put_if_absent", interrupt_the_second)
    answer = icedb("ingest", "events", str(path), "--batch-rows", "2", code=130)
    assert "2 rows are accepted in 1 batches, up to row 2 of the last file" in " ".join(answer.err.split())


def quarantine(parquet, name="events"):
    """Move what is staged to quarantine, as a flush does that cannot commit it."""
    store, paths = parquet.warehouse.store, parquet.warehouse.table(name)
    staged = list_staged(store, paths).batches
    for batch in staged:
        quarantine_batch(store, paths, rejected=RejectedBatch(batch, "line 1: no [ts]"), clock=parquet.clock)
    return [batch.batch_id for batch in staged]


def test_quarantine_is_listed_and_shown(icedb, parquet):
    parquet.create("events")
    assert "nothing is in quarantine" in icedb("quarantine", "list", "events").err
    for body in (b'{"a":"[red]"}\n{"a":2}\n', b'{"b":1}\n'):
        icedb("ingest", "events", "-", stdin=body)
    ids = quarantine(parquet)
    assert icedb("status", "events", "--json").json["tables"][0]["quarantined_batches"] == 2
    listed = icedb("quarantine", "list", "events", "--json").json["batches"]
    assert [(entry["batch_id"], entry["kind"], entry["reason"]) for entry in listed] == [
        (batch_id, "batch", "line 1: no [ts]") for batch_id in ids
    ]
    assert ids[0] in icedb("quarantine", "list", "events").out
    shown = icedb("quarantine", "show", "events", ids[0], "--lines", "1").out
    assert "line 1: no [ts]" in shown
    assert shown.endswith('\n{"a":"[red]"}\n')
    assert icedb("quarantine", "show", "events", ids[0], "--json").json["lines"] == ['{"a":"[red]"}', '{"a":2}']
    assert "batch 'nope' is not in quarantine" in icedb("quarantine", "show", "events", "nope", code=3).error
    assert "did you mean events?" in icedb("quarantine", "show", "evnts", "nope", code=3).error


def test_quarantine_is_retried_or_dropped(icedb, parquet):
    parquet.create("events")
    for n in range(4):
        icedb("ingest", "events", "-", stdin=b'{"n":%d}\n' % n)
    ids = quarantine(parquet)
    done = icedb("quarantine", "retry", "events", ids[0], "--json").json
    (retried,) = done["retried"]
    assert (retried["batch_id"], done["failed"], done["woken"]) == (ids[0], [], False)
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events")
    (staged,) = list_staged(store, paths).batches
    assert (staged.batch_id, store.get(staged.key).body) == (retried["retry_id"], b'{"n":0}\n')
    mixed = icedb("quarantine", "retry", "events", "nope", ids[1], "--json", code=3)
    assert [entry["batch_id"] for entry in mixed.json["retried"]] == [ids[1]]
    assert [entry["batch_id"] for entry in mixed.json["failed"]] == ["nope"]
    assert "batch nope is not in quarantine" in mixed.error
    assert "give --yes" in icedb("quarantine", "drop", "events", ids[2], code=2, stdin=b"y\n").error
    assert f"dropped {ids[2]}" in icedb("quarantine", "drop", "events", ids[2], "--yes").out
    assert len(icedb("quarantine", "list", "events", "--json").json["batches"]) == 1
    dropped = icedb("quarantine", "drop", "events", "--all", "--yes", "--json").json
    assert dropped == {"table": "events", "dropped": [{"batch_id": ids[3]}], "failed": []}
    assert "nothing is in quarantine" in icedb("quarantine", "retry", "events", "--all").err
    for wrong in ((), (ids[0], "--all")):
        assert "give ids of batches, or --all" in icedb("quarantine", "drop", "events", *wrong, code=2).error


def test_a_halted_table_does_not_hide_the_others(icedb, parquet):
    for name in ("bad", "good"):
        parquet.create(name)
    key = parquet.damage("bad")
    answer = icedb("status", "--json", code=5)
    assert [(t["table"], t["halted"]) for t in answer.json["tables"]] == [("bad", True), ("good", False)]
    assert key in answer.error
    assert "halted" in icedb("status", code=5).out
    assert key in icedb("snapshot", "bad", code=5).error
    assert icedb("snapshot", "good", "--json").json["file_count"] == 0


def test_a_table_without_a_readable_configuration_does_not_hide_the_others(icedb, parquet):
    parquet.create("good")
    parquet.warehouse.store.put(parquet.warehouse.table("bad").config_key, b"{")
    answer = icedb("table", "list", "--json", code=5)
    assert [each["table"] for each in answer.json["tables"]] == ["good"]
    assert list(answer.json["unreadable"]) == ["bad"]
    assert "bad/_icedb/table.json" in answer.error
    assert "good" in icedb("table", "list", code=5).out


@pytest.mark.parametrize("output", [["--format", "paths"], ["--json"], []])
def test_output_may_be_cut_short(parquet, url, output):
    parquet.create("events")
    parquet.commit("events", "select 1 as amount")
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "ICEDB_STORE": url}
    try:
        done = subprocess.run(
            [ICEDB, "snapshot", "events", *output],
            env=environment,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
