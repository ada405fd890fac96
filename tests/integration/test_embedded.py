"""The warehouse in the callers' own processes: several at once, killed in the middle, beside ``icedb work`` and merges."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from icedb import connect
from icedb_client import Client
from icedb_log.commit.fence import look_at_fence
from icedb_log.errors import InvalidRequest
from icedb_log.ingest.staging import list_staged
from icedb_log.log.fold import fold
from icedb_sim.rigs.redis_server import RedisServer
from processes import free_port
from waiting import LIMIT_MS, LIMIT_S, wait_until

APPEND = """
import json, sys
from icedb import connect
from icedb_log.clock import new_batch_id
from icedb_log.errors import IceDBError

folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
lake = connect(folder)
events = lake.table("events")
for n in range(count):
    batch_id = new_batch_id(lake.gate.clock)
    print(json.dumps({"begun": batch_id, "n": n}), flush=True)
    done = events.append([{"ts": "2026-01-02T00:00:00Z", "who": name, "n": n}], batch_id=batch_id)
    print(json.dumps({"done": batch_id, "key": done.committed_key, "fences": events.fences}), flush=True)
"""
MERGE = """
import sys, time
from icedb import connect
from icedb_log.errors import IceDBError

events = connect(sys.argv[1]).table("events")
count = 0
while True:
    try:
        count += events.merge(full=True).commit_count
        print(count, flush=True)
    except IceDBError as error:
        print(f"# {error}", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def lake(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("ICEDB_"):
            monkeypatch.delenv(name)
    with connect(tmp_path / "lake") as lake:
        columns = {"who": "VARCHAR", "n": "BIGINT"}
        lake.create_table("events", partition=["d=day(ts)"], sort=["who", "n"], columns=columns)
        yield lake


@contextlib.contextmanager
def running(*arguments, out=subprocess.PIPE):
    """Run Python beside this process; it is ended at the end, if it has not by then."""
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=LIMIT_S)


def folder_of(lake):
    return lake.client.settings.store


def said(process):
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_processes_append_beside_a_worker_and_a_merge(lake, tmp_path):
    with (
        running("-c", "from icedb.cli import main; main()", "--store", folder_of(lake), "work") as worker,
        running("-c", MERGE, folder_of(lake)) as merger,
        running("-c", APPEND, folder_of(lake), "a", 10) as one,
        running("-c", APPEND, folder_of(lake), "b", 10) as other,
    ):
        assert "working on" in worker.stderr.readline()  # it may start later than the others end
        answers = [said(one), said(other)]
        assert worker.poll() is None
        assert merger.poll() is None
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_S) == 0
    assert all(len([each for each in found if "done" in each]) == 10 for found in answers)
    found = lake.query("select who, count(*), sum(n) from events group by 1 order by 1").fetchall()
    assert found == [("a", 10, 45), ("b", 10, 45)]
    assert not list_staged(lake.table("events").place).batches


def test_a_process_killed_in_the_middle_of_appends_loses_nothing_and_doubles_nothing(lake):
    events = lake.table("events")
    begun, done = {}, set()
    chance = random.Random(7)
    for round_number in range(3):
        with running("-c", APPEND, folder_of(lake), f"r{round_number}", 1000) as process:
            for line in process.stdout:
                each = json.loads(line)
                if "begun" in each:
                    begun[each["begun"]] = (f"r{round_number}", each["n"])
                else:
                    done.add(each["done"])
                if len(done) >= 4 * (round_number + 1):
                    time.sleep(chance.random() * 0.1)
                    os.kill(process.pid, signal.SIGKILL)
                    break
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # cut off by the kill
                    each = json.loads(line)
                    begun |= {each["begun"]: (f"r{round_number}", each["n"])} if "begun" in each else {}
                    done |= {each["done"]} if "done" in each else set()
    assert len(done) >= 12
    for batch_id, (who, n) in begun.items():  # as a caller does that does not know
        events.append([{"ts": "2026-01-02T00:00:00Z", "who": who, "n": n}], batch_id=batch_id)
    rows = lake.query("select who, n from events").fetchall()
    assert sorted(rows) == sorted(begun.values())


def test_an_appender_that_is_killed_has_accepted_what_it_said_and_work_commits_it(lake):
    code = """
import os, signal, sys
from icedb import connect
with connect(sys.argv[1]).table("events").appender(commit_every_ms=3_600_000) as out:
    for n in range(20):
        out.append([{"ts": "2026-01-02T00:00:00Z", "who": "x", "n": n}])
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with running("-c", code, folder_of(lake)) as process:
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    events = lake.table("events")
    assert len(list_staged(events.place).batches) == 20
    told = []
    lake.work(until_idle=True, tell=told.append)
    assert told[0].details["batches"] == 20
    assert lake.query("select count(*), sum(n) from events").fetchall() == [(20, 190)]


def test_views_are_fed_and_old_things_go_when_a_lake_works(lake):
    events = lake.table("events")
    daily = lake.create_table(
        "daily", view_of="events", view_query="select who, count(*) as n from _rows group by who", sort=["who"]
    )
    for n in range(3):
        events.append([{"ts": "2026-01-02T00:00:00Z", "who": "x", "n": n}])
    lake.work(until_idle=True)
    assert lake.query("select sum(n) from daily").fetchall() == [(3,)]
    events.delete("n = 1")
    assert lake.query("select count(*) from events").fetchall() == [(2,)]
    lake.work(until_idle=True)
    assert daily.open().config.view_of == "events"


def test_the_log_stays_short_without_anybody_calling_merge(tmp_path):
    """Each 32 commits are folded, and what is folded away goes after its grace period, however long that is in commits."""
    with connect(tmp_path / "lake") as lake:
        events = lake.create_table("events", log_grace="1s", data_grace="1s")
        count, view = 0, None
        while count < 100 or len(view.files) > count / 2 or len(fold(view).live) > count / 2:
            try:
                events.append([{"n": count}])
            except InvalidRequest as refused:  # on a busy machine one batch may take longer than such a period allows
                assert "after its id was made" in str(refused)
                continue
            count += 1
            assert count < 2000, f"{len(view.files)} log files, {len(fold(view).live)} data files"
            view = events.open().read_log()
        rows = lake.query("select count(*), sum(n) from events").fetchall()
        assert rows == [(count, count * (count - 1) // 2)]


@pytest.mark.soak
def test_sixteen_appenders_beside_flush_and_merge_all_commit(lake, tmp_path):
    """None starves another: each appender, the worker and the merge commit again and again."""
    seconds = float(os.environ.get("SOAK_S", "300"))
    names = [*(f"a{n}" for n in range(16)), "merge"]
    with contextlib.ExitStack() as stack:
        run = ["-c", "from icedb.cli import main; main()", "--store", folder_of(lake), "work"]
        processes = [stack.enter_context(running(*run, out=subprocess.DEVNULL))]
        for name in names:  # into files: nobody reads a pipe meanwhile
            out = stack.enter_context((tmp_path / name).open("w"))
            code = ["-c", MERGE, folder_of(lake)] if name == "merge" else ["-c", APPEND, folder_of(lake), name, 10**9]
            processes.append(stack.enter_context(running(*code, out=out)))
        time.sleep(seconds)
        for process in processes:
            process.send_signal(signal.SIGKILL)
    outputs = [(tmp_path / name).read_text().splitlines() for name in names]
    *said_by, merges = outputs
    counts = [sum('"done"' in line for line in lines) for lines in said_by]
    last_said = (next((each for each in reversed(lines) if each.endswith("}}")), "{}") for lines in said_by)
    fences = sum((Counter(json.loads(each).get("fences", {})) for each in last_said), Counter[str]())
    print(f"appends {min(counts)} to {max(counts)} each, {sum(counts)} together; fences {dict(fences)}")
    print("merge commits", merges[-1] if merges else 0)
    assert min(counts) >= seconds / 60
    assert fences["working"] <= sum(fences.values()) / 10  # who is at work is waited for
    assert any(line.isdigit() and int(line) > 0 for line in merges)
    begun = sum('"begun"' in line for lines in said_by for line in lines)
    lake.work(until_idle=True)
    ((rows,),) = lake.query("select count(*) from events").fetchall()
    ((distinct,),) = lake.query("select count(*) from (select distinct who, n from events)").fetchall()
    assert sum(counts) <= rows == distinct <= begun


def test_a_worker_of_the_stack_and_embedded_callers_share_a_table(lake, monkeypatch):
    """The worker is woken by a client of its own; embedded appends go on beside it, and each row is there once."""
    with RedisServer() as redis:
        monkeypatch.setenv("ICEDB_REDIS_URL", redis.url)
        monkeypatch.setenv("ICEDB_REDIS_TIMEOUT_MS", "3000")
        monkeypatch.setenv("ICEDB_STORE", folder_of(lake))
        monkeypatch.setenv("ICEDB_METRICS_PORT", str(free_port()))
        with (
            running("-m", "icedb_local.chaos.light_worker", "ingest") as worker,
            running("-c", APPEND, folder_of(lake), "embedded", 10) as embedded,
            Client() as client,
        ):
            ids = [
                client.enqueue("events", [{"ts": "2026-01-02T00:00:00Z", "who": "stack", "n": n}]).batch_id
                for n in range(30)
            ]
            assert len([each for each in said(embedded) if "done" in each]) == 10
            assert set(client.wait_committed("events", ids, timeout_ms=LIMIT_MS).committed) == set(ids)

            def is_worker_seen():
                late = client.enqueue("events", [{"ts": "2026-01-02T00:00:00Z", "who": "late", "n": 0}])
                client.wait_committed("events", [late.batch_id], timeout_ms=LIMIT_MS)
                return look_at_fence(lake.table("events").place).is_worker_alive

            wait_until(is_worker_seen, "the worker has taken the fence")
            assert worker.poll() is None
    found = lake.query("select who, count(*), sum(n) from events where who <> 'late' group by 1 order by 1")
    assert found.fetchall() == [("embedded", 10, 45), ("stack", 30, 435)]
