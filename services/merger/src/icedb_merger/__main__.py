"""Runs the merger: ``python -m icedb_merger``. Wiring only."""

from functools import partial

from icedb_engine.spark.spark_engine import open_spark_engine
from icedb_service.main import run_main
from icedb_service.worker import WorkerService, run_worker

from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import register_tasks


def serve(settings: MergerSettings) -> int:
    """Serve the queue ``merge`` until SIGTERM."""
    metrics = MergeMetrics()
    service = WorkerService(
        queue="merge",
        metrics=metrics,
        open_engine=partial(
            open_spark_engine, settings, app_name="icedb-merger", on_interrupt=metrics.count_interrupted
        ),
        register_tasks=partial(register_tasks, settings=settings, metrics=metrics),
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(MergerSettings, "merge", serve)
