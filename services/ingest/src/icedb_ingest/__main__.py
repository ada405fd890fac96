"""Runs the ingest worker: ``python -m icedb_ingest``. Wiring only."""

from functools import partial

from icedb_parts.spark.spark_engine import open_spark_engine
from icedb_service.main import run_main
from icedb_service.worker import WorkerService, run_worker

from icedb_ingest.imports import source_s3
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_tasks


def serve(settings: IngestSettings) -> int:
    """Serve the queue ``ingest`` until SIGTERM."""
    metrics = IngestMetrics()
    service = WorkerService(
        queue="ingest",
        metrics=metrics,
        open_engine=partial(
            open_spark_engine,
            settings,
            app_name="icedb-ingest",
            source_s3=source_s3(settings),
            on_interrupt=metrics.count_interrupted,
        ),
        register_tasks=partial(register_tasks, settings=settings, metrics=metrics),
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(IngestSettings, "ingest", serve)
