"""Runs the janitor: ``python -m icedb_janitor``. Wiring only."""

from functools import partial

from icedb_service.main import run_main
from icedb_service.worker import NoEngine, WorkerService, run_worker

from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import register_tasks


def serve(settings: JanitorSettings) -> int:
    """Serve the queue ``janitor`` until SIGTERM."""
    metrics = JanitorMetrics()
    service = WorkerService(
        queue="janitor",
        metrics=metrics,
        open_engine=NoEngine,
        register_tasks=partial(register_tasks, settings=settings, metrics=metrics),
        threads=settings.janitor_tables_at_once,
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(JanitorSettings, "janitor", serve)
