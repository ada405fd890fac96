"""The worker of the queue ``ingest`` as it is, with the engine that works in its own process in the place of Spark."""

from icedb_engine.local_engine import LocalEngine
from icedb_ingest.metrics import INGEST_TASKS, IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_tasks
from icedb_service.main import run_main
from icedb_service.worker import WorkerService, run_worker


class Engine(LocalEngine):
    """An engine that cannot die."""

    def is_alive(self):
        return True

    def close(self):
        pass


def serve(settings):
    metrics = IngestMetrics(tasks=INGEST_TASKS)
    service = WorkerService(
        queue="ingest",
        metrics=metrics,
        open_engine=lambda: Engine(settings.store_settings.open().store),
        register_tasks=lambda app, context: register_tasks(app, context, settings=settings, metrics=metrics),
    )
    return run_worker(service, settings)


if __name__ == "__main__":
    run_main(IngestSettings, "ingest", serve)
