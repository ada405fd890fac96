"""Runs the ingest worker: ``python -m icedb_ingest``, or that of large batches: ``python -m icedb_ingest.large``.

Wiring only.
"""

from functools import partial
from typing import TYPE_CHECKING

from icedb_log.names import Queue
from icedb_service.main import run_main
from icedb_service.worker import WorkerService, run_worker

from icedb_ingest.imports import source_s3
from icedb_ingest.metrics import INGEST_TASKS, LARGE_TASKS, IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_large_tasks, register_tasks

if TYPE_CHECKING:
    from icedb_engine.spark.spark_engine import SparkEngine


def serve(settings: IngestSettings, *, queue: Queue = "ingest") -> int:
    """Serve the queue ``ingest``, or ``ingest-large``, until SIGTERM."""
    is_large = queue == "ingest-large"
    metrics = IngestMetrics(tasks=LARGE_TASKS if is_large else INGEST_TASKS)

    def open_engine() -> "SparkEngine":
        from icedb_engine.spark.spark_engine import open_spark_engine  # noqa: PLC0415 - the parent needs none of it

        return open_spark_engine(
            settings,
            app_name=f"icedb-{queue}",
            limits=settings.job_limits,
            source_s3=source_s3(settings),
            purges_memory=True,
            on_interrupt=metrics.count_interrupted,
        )

    service = WorkerService(
        queue=queue,
        metrics=metrics,
        open_engine=open_engine,
        opens_late=settings.spark_starts_late,
        register_tasks=partial(
            register_large_tasks if is_large else register_tasks, settings=settings, metrics=metrics
        ),
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(IngestSettings, "ingest", serve)
