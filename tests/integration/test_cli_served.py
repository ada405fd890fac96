"""The reading commands through a snapshot service alone, and `icedb watch` as a process: Ctrl-C, a closed pipe."""

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from icedb.cli.app import run
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from processes import service_env
from snapshot_services import serving
from waiting import LIMIT_S

TOKEN = "a-token-of-the-tests-" + "x" * 22
SCHEMA = {"n": "BIGINT"}


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    parquet = ParquetWarehouse(open_warehouse(f"file://{tmp_path_factory.mktemp('served')}"))
    parquet.create("events", "d=day(ts)", declared={"ts": "TIMESTAMP"}, sort=("ts",))
    parquet.create("clicks")
    parquet.create("broken")
    parquet.commit("clicks", "select 1 as n", schema=SCHEMA)
    parquet.damage("broken")
    return parquet


@pytest.fixture(scope="module")
def serve(parquet, quiet_services):
    with serving(parquet.warehouse) as serve:
        yield serve


@pytest.fixture(scope="module")
def address(serve):
    return f"127.0.0.1:{serve()}"


@pytest.fixture
def icedb(address, monkeypatch, capfd):
    """Run a command with the service's address and nothing else."""
    for name in list(os.environ):
        if name.startswith("ICEDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ICEDB_SNAPSHOT_ADDRESS", address)
    monkeypatch.setenv("COLUMNS", "200")

    def icedb(*arguments, code=0):
        handlers = list(logging.getLogger().handlers)
        capfd.readouterr()
        try:
            found = run(arguments)
        finally:
            logging.getLogger().handlers = handlers
        out, err = capfd.readouterr()
        assert found == code, err
        return (out, err)

    return icedb


def test_tables_without_a_store(icedb):
    out, err = icedb("table", "list", code=5)
    assert [line.split()[0] for line in out.splitlines()] == ["table", "clicks", "events"]
    assert "d=day(ts)" in out
    assert err.count("error:") == 1
    assert "broken" in err
    document = json.loads(icedb("table", "list", "-o", "json", code=5)[0])
    assert [table["table"] for table in document["tables"]] == ["clicks", "events"]
    assert list(document["unreadable"]) == ["broken"]
    shown = icedb("table", "show", "clicks")[0]
    assert "BIGINT" in shown
    assert "data grace" in shown
    assert json.loads(icedb("table", "show", "events", "-o", "json")[0])["sort"] == ["ts"]
    assert "'nope' does not exist" in icedb("table", "show", "nope", code=3)[1]
    assert "'click' does not exist; did you mean clicks?" in icedb("snapshot", "click", code=3)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--where", "nope = 1"), "nope"),
        (("--where", "n ="), "not understood"),
        (("--as-of", "2200-01-01"), "in the future"),
        (("--presign", "1h"), "directory"),
    ],
)
def test_what_the_service_refuses_is_one_clear_line(icedb, options, words):
    _, err = icedb("snapshot", "clicks", *options, code=2)
    assert words in err
    assert err.count("\n") == 1


def test_changes_and_watch(icedb, parquet):
    now = parquet.clock.now_ms()
    (added,) = json.loads(icedb("changes", "clicks", "--since", str(now - 3_600_000), "-o", "json")[0])["added"]
    assert added["row_count"] == 1
    (line,) = icedb("watch", "clicks", "--count", "1", "-o", "ndjson")[0].splitlines()
    assert json.loads(line)["row_count"] == 1


def test_who_may_not_ask_gets_7(icedb, serve, monkeypatch, tmp_path):
    access = write_access(
        tmp_path / "access.json",
        {
            "identities": {"reports": {"tokens": [token_entry(TOKEN)]}},
            "grants": [{"identities": ["reports"], "tables": ["clicks"], "verbs": ["append"]}],
        },
    )
    monkeypatch.setenv("ICEDB_SNAPSHOT_ADDRESS", f"127.0.0.1:{serve(access_file=str(access))}")
    icedb("snapshot", "clicks", code=7)
    monkeypatch.setenv("ICEDB_TOKEN", TOKEN)
    _, err = icedb("snapshot", "clicks", code=7)
    assert err.startswith("error: ")
    assert TOKEN not in err


def test_watch_ends_by_ctrl_c_and_with_its_reader(address, parquet):
    env = service_env()
    command = [Path(sys.executable).parent / "icedb", "--snapshot-address", address, "watch", "events"]
    with ExitStack() as stack:
        processes = []
        for _ in range(2):
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        interrupted, unread = processes
        for process in processes:
            assert "0 files" in process.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.communicate(timeout=LIMIT_S) == ("", "")
        assert interrupted.returncode == 130
        unread.stdout.close()
        parquet.commit(
            "events", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02", schema={"ts": "TIMESTAMP"}
        )
        assert unread.wait(LIMIT_S) == 0
        assert unread.stderr.read() == ""
