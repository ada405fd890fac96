"""The workers of the queues ``ingest`` and ``ingest-large`` as they are, but without Spark.

``python sized_worker_process.py QUEUE GATE``: a job that takes large batches leaves a file ``GATE.begun`` when it begins,
and waits until there is a file ``GATE.go``.
"""

import sys
from functools import partial
from pathlib import Path

from icedb_ingest.metrics import INGEST_TASKS, LARGE_TASKS, IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_large_tasks, register_tasks
from icedb_log.clock import SystemClock
from icedb_service.main import run_main
from icedb_service.worker import NoEngine, WorkerService, run_worker
from icedb_sim.tables.row_files import RowFileWriter

POLL_MS = 10


class GatedWriter(NoEngine):
    """Engine and writer in one."""

    def __init__(self, settings, gate):
        self.inner = RowFileWriter(settings.store_settings.open().store, SystemClock())
        self.gate = gate

    @property
    def writer(self):
        return self

    def write_batches(self, job):
        if job.sizes.takes == "large":
            self.gate.with_suffix(".begun").touch()
            while not self.gate.with_suffix(".go").exists():
                job.check_alive()
                SystemClock().sleep_ms(POLL_MS)
        return self.inner.write_batches(job)


def serve(settings):
    queue, gate = sys.argv[1], Path(sys.argv[2])
    is_large = queue == "ingest-large"
    metrics = IngestMetrics(tasks=LARGE_TASKS if is_large else INGEST_TASKS)
    register = register_large_tasks if is_large else register_tasks
    service = WorkerService(
        queue=queue,
        metrics=metrics,
        open_engine=partial(GatedWriter, settings, gate),
        register_tasks=partial(register, settings=settings, metrics=metrics),
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(IngestSettings, sys.argv[1], serve)
