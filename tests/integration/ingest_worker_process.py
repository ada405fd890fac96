"""The ingest worker as it is, but without Spark, and with a broker that redelivers within a second.

``python ingest_worker_process.py MARKS early|late`` writes a line to the file MARKS when a flush begins and ends to
write. ``early``: messages are acknowledged as the service does it, and a flush takes longer than the broker waits for
an acknowledgement. ``late``: messages are acknowledged when a flush has ended, no lock is asked for, and a flush waits
until another one has begun: the worst that a wrong setting can do.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_tasks
from icedb_log.clock import SystemClock
from icedb_log.names import INGEST_FLUSH
from icedb_service.main import run_main
from icedb_service.worker import NoEngine, WorkerService, run_worker
from icedb_sim.tables.row_files import RowFileWriter

VISIBILITY_S = 1
FLUSH_S = 3
MEETING_LIMIT_S = 240
REDELIVERY = {
    "visibility_timeout": VISIBILITY_S,
    "unacked_restore_interval": 0.2,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 1,
}


class NoLock:
    """Nobody holds anything."""

    def check_alive(self):
        """Say yes."""


class SlowWriter(NoEngine):
    """Engine and writer in one."""

    def __init__(self, store, marks, *, is_late):
        self.inner = RowFileWriter(store, SystemClock())
        self.marks = marks
        self.is_late = is_late

    @property
    def writer(self):
        return self

    def write_batches(self, job):
        self.mark("begin")
        if self.is_late:
            deadline_s = time.monotonic() + MEETING_LIMIT_S
            while self.marks.read_text().count("begin") < 2 and time.monotonic() < deadline_s:
                time.sleep(0.02)
        else:
            time.sleep(FLUSH_S)
        output = self.inner.write_batches(job)
        self.mark("end")
        return output

    def mark(self, what):
        with self.marks.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")


def serve(settings):
    marks, is_late = Path(sys.argv[1]), sys.argv[2] == "late"
    metrics = IngestMetrics()

    def open_engine():
        return SlowWriter(settings.store_settings.open().store, marks, is_late=is_late)

    def register(app, context):
        register_tasks(app, context, settings=settings, metrics=metrics)
        app.conf.broker_transport_options = {**app.conf.broker_transport_options, **REDELIVERY}
        if is_late:
            app.tasks[INGEST_FLUSH].acks_late = True
            context.lock = lambda table: contextlib.nullcontext(NoLock())

    return run_worker(
        WorkerService(queue="ingest", metrics=metrics, open_engine=open_engine, register_tasks=register), settings
    )


if __name__ == "__main__":
    run_main(IngestSettings, "ingest", serve)
