"""Runs the merger: ``python -m icedb_merger``. Wiring only."""

from functools import partial
from typing import TYPE_CHECKING

from icedb_service.main import run_main
from icedb_service.worker import WorkerService, run_worker

from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import register_tasks

if TYPE_CHECKING:
    from icedb_engine.spark.spark_engine import SparkEngine


def serve(settings: MergerSettings) -> int:
    """Serve the queue ``merge`` until SIGTERM."""
    metrics = MergeMetrics()

    def open_engine() -> "SparkEngine":
        from icedb_engine.spark.spark_engine import open_spark_engine  # noqa: PLC0415 - the parent needs none of it

        return open_spark_engine(settings, app_name="icedb-merger", on_interrupt=metrics.count_interrupted)

    service = WorkerService(
        queue="merge",
        metrics=metrics,
        open_engine=open_engine,
        opens_late=settings.spark_starts_late,
        register_tasks=partial(register_tasks, settings=settings, metrics=metrics),
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(MergerSettings, "merge", serve)
