"""Sixteen callers who append in their own processes, beside workers whose jobs take as long as those of Spark (F6).

``test_embedded.py`` has them beside ``icedb work``. A flush here takes two seconds, a merge seven, and a janitor cleans.
For ``ICEDB_SOAK_SECONDS`` (60). Nobody holds a lock: the fence and its claims are all they have in common. Every side
commits, every row is there once, and the last line says what it cost. How often each waited is printed, not asserted.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from icedb import connect
from icedb_log.clock import SystemClock
from icedb_log.repair.fsck import fsck_table

APPENDERS = 16
SCRIPT = Path(__file__).with_name("appender_process.py")
SECONDS = float(os.environ.get("ICEDB_SOAK_SECONDS", "60"))
LIMIT_S = 300

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 2 * LIMIT_S)]


def start(side, folder, number):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), side, str(folder), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_every_side_commits_and_every_row_is_there_once(tmp_path):
    lake = connect(tmp_path / "lake")
    # Short grace periods: five minutes of commits have to go through the log, and out of it.
    events = lake.create_table("events", log_grace_ms=20_000, data_grace_ms=20_000)
    sides = [("appender", number) for number in range(APPENDERS)]
    sides += [("flusher", APPENDERS), ("merger", 0), ("janitor", 0)]
    running = [(side, start(side, tmp_path / "lake", number)) for side, number in sides]
    try:
        for _, process in running:
            assert process.stdout.readline() == "ready\n"
        time.sleep(SECONDS)
        for _, process in running:
            process.stdin.close()
        told = [(side, json.loads(process.stdout.readline())) for side, process in running]
        assert [process.wait(LIMIT_S) for _, process in running] == [0] * len(running)
    finally:
        for _, process in running:
            process.kill()
            process.wait(LIMIT_S)
            process.stdin.close()
            process.stdout.close()
    totals = {}
    for side, happened in told:
        total = totals.setdefault(side, Counter())
        total["longest_ms"] = max(total["longest_ms"], happened.pop("longest_ms"))
        total.update(happened)
    print(json.dumps({"seconds": SECONDS, **totals}))
    assert [(side, happened) for side, happened in told if not happened.get("commits")] == []
    events.flush()
    found = events.query("select side, n, count(*) c from events group by all").fetchall()
    assert [row for row in found if row[2] != 1] == []
    by_side = Counter(row[0] for row in found)
    least = {number: told[number][1]["commits"] for number in range(APPENDERS)}
    assert {number: by_side[number] for number in least if by_side[number] < least[number]} == {}
    assert by_side[APPENDERS] == told[APPENDERS][1]["staged"]
    errors = [each for each in fsck_table(events.place, clock=SystemClock()).findings if each.severity == "error"]
    assert errors == []
