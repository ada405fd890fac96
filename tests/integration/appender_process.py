"""What the soak test of appenders beside workers runs as processes: ``python appender_process.py SIDE FOLDER NUMBER``.

``appender`` appends in its own process; ``flusher``, ``merger`` and ``janitor`` are workers of the stack, with jobs that
take as long as those of Spark. Each works until standard input ends, and then prints what it did.
"""

import json
import sys
import threading
import time
from collections import Counter

from icedb import connect
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, CommitOutcomeUnknown, Fenced, Overloaded, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.jobs import never_stop
from icedb_log.merge.merge import merge_table

TABLE = "events"
JOB_S = {"flusher": 2.0, "merger": 7.0}
LOOK_S = 0.2
FAILURES = (CommitConflict, CommitOutcomeUnknown, Fenced, Overloaded, Unavailable)


class SlowJobs:
    """A data path that takes its time, and asks meanwhile whether it should go on."""

    def __init__(self, inner, seconds):
        self.inner, self.seconds = inner, seconds

    def write_batches(self, job):
        self.take_time(job)
        return self.inner.write_batches(job)

    def merge_groups(self, job):
        self.take_time(job)
        return self.inner.merge_groups(job)

    def take_time(self, job):
        ends = time.monotonic() + self.seconds
        while time.monotonic() < ends:
            time.sleep(LOOK_S)
            job.check_alive()


class Side:
    """One process, and what happened to it."""

    def __init__(self, side, folder, number):
        self.side, self.number = side, int(number)
        self.lake = connect(folder)
        self.table = self.lake.table(TABLE)
        _ = self.lake.engine.writer, self.lake.engine.merger  # loaded before the time begins
        self.happened = Counter()
        self.longest_ms = 0

    def note(self, acquired):
        self.happened["acquired"] += 1
        self.happened["waits"] += acquired.waited_ms > 0
        self.happened["waited_ms"] += acquired.waited_ms
        self.happened[f"took_{acquired.previous_holder}"] += acquired.previous_holder != "free"
        self.longest_ms = max(self.longest_ms, acquired.waited_ms)

    def open(self):
        owner = {"flusher": "ingest", "merger": "merger", "janitor": "janitor"}[self.side]
        opened = Table.open(self.table.place, clock=self.lake.clock, owner=f"{owner}@soak:{self.number}")
        return opened.watched_by(never_stop, on_fence=self.note)

    def appender(self, turn):
        self.table.append([{"side": self.number, "n": turn}])
        self.happened["commits"] += 1

    def flusher(self, turn):
        self.lake.gate.stage(TABLE, body_of(self.number, turn), new_batch_id(self.lake.gate.clock))
        self.happened["staged"] += 1
        result = flush_table(self.open(), SlowJobs(self.lake.engine.writer, JOB_S["flusher"]))
        self.happened["commits"] += result.committed_key is not None
        self.happened["batches"] += result.batch_count
        time.sleep(1)

    def merger(self, turn):
        del turn
        result = merge_table(self.open(), SlowJobs(self.lake.engine.merger, JOB_S["merger"]))
        self.happened["commits"] += result.commit_count
        time.sleep(LOOK_S)

    def janitor(self, turn):
        del turn
        vacuum_table(self.open())
        self.happened["commits"] += 1
        time.sleep(2)

    def run(self, is_over):
        turn = 0
        while not is_over.is_set():
            try:
                getattr(self, self.side)(turn)
            except FAILURES as error:
                self.happened[type(error).__name__] += 1
            turn += 1
        self.happened.update({f"took_{whose}": count for whose, count in self.table.fences.items()})
        return {**self.happened, "turns": turn, "longest_ms": self.longest_ms}


def body_of(number, turn):
    from icedb_client.files import to_body  # noqa: PLC0415 - only workers send

    return to_body([{"side": number, "n": turn}], None)


if __name__ == "__main__":
    over = threading.Event()
    side = Side(*sys.argv[1:])
    print("ready", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print(json.dumps(side.run(over)), flush=True)
