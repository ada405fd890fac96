"""Copies of a warehouse that is written all the while: each is brought back, read with our own readers, and sent to."""

import json
import subprocess
import sys
import threading
from collections import Counter

import pytest
from icedb import connect
from icedb_log.backup.backup import backup_warehouse
from icedb_log.clock import SystemClock
from icedb_log.repair.fsck import fsck_table
from icedb_log.warehouse import Warehouse

pytestmark = pytest.mark.soak

COPIES = 3
SEND = """
import itertools, json, sys, time
from icedb import connect

client = connect(sys.argv[1]).client
for n in itertools.count():
    batch = client.enqueue("events", [{"ts": "2026-01-02T00:00:00Z", "who": "sender", "n": n}])
    print(json.dumps({"n": n, "batch": batch.batch_id}), flush=True)
    time.sleep(0.05)  # load, not a flood: each batch of the copy is read
"""
WORK = "from icedb.cli import main; main()"
APPEND = """
import itertools, json, sys
from icedb import connect

events = connect(sys.argv[1]).table("events")
for n in itertools.count():
    events.append([{"ts": "2026-01-02T00:00:00Z", "who": "appender", "n": n}])
    print(json.dumps({"n": n}), flush=True)
"""


class Acknowledged:
    """A process that sends, and what was acknowledged to it."""

    def __init__(self, code, folder):
        command = [sys.executable, "-c", code, folder]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def stop(self):
        self.process.terminate()
        self._thread.join()
        self.process.communicate()


def copy(source, folder, url):
    """Back up to a folder; everything has to be whole."""
    with connect(folder) as lake:
        target = lake.client.warehouse
    found = list(backup_warehouse(source, Warehouse(target.store), source_url=url, clock=SystemClock()))
    assert [(each.table, each.problem) for each in found] == [("events", "")]
    return found[0], target


def test_every_copy_under_load_comes_back_whole_and_takes_nothing_twice(tmp_path):
    live = str(tmp_path / "live")
    with connect(live) as lake:
        columns = {"who": "VARCHAR", "n": "BIGINT"}
        lake.create_table("events", partition=["d=day(ts)"], sort=["who", "n"], columns=columns)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORK, "--store", live, "work"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    senders = {"sender": Acknowledged(SEND, live), "appender": Acknowledged(APPEND, live)}
    try:
        for number in range(COPIES):
            while any(len(each.said) < 10 * (number + 1) and each.process.poll() is None for each in senders.values()):
                threading.Event().wait(0.05)
            assert {who: each.process.poll() for who, each in senders.items()} == {"sender": None, "appender": None}
            known = {(who, each["n"]): each.get("batch") for who in senders for each in tuple(senders[who].said)}
            with connect(live) as lake:
                made, kept = copy(lake.client.warehouse, str(tmp_path / "copy"), "live")
            assert made.point_ms > 0
            check(kept, str(tmp_path / f"back-{number}"), known)
    finally:
        for each in senders.values():
            each.stop()
        worker.terminate()
        worker.wait()


def check(kept, folder, known):
    """Bring a copy back; commit what waits; send the newest batches again, as their producers would."""
    _, back = copy(kept, folder, "copy")
    assert fsck_table(back.table("events"), clock=SystemClock()).is_sound
    with connect(folder) as lake:
        for (who, n), batch_id in sorted(known.items())[-5:]:
            lake.client.enqueue("events", [{"ts": "2026-01-02T00:00:00Z", "who": who, "n": n}], batch_id=batch_id)
        lake.work(until_idle=True)
        rows = Counter(lake.query("select who, n from events").fetchall())
        lake.table("events").merge(full=True)
        merged = Counter(lake.query("select who, n from events").fetchall())
    assert known.keys() <= rows.keys()
    assert set(rows.values()) == {1}
    assert merged == rows
