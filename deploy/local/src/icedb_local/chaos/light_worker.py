"""The ingest worker and the merger as they are, but without Spark: units of work run in the worker's own process.

For short runs: a JVM takes longer to start than such a run lasts. Everything else is the services' own code, also what
a Spark task would run.

    python -m icedb_local.chaos.light_worker ingest|merger
"""

import sys
from functools import partial

from icedb_engine.local_engine import LocalEngine, choose_limits
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_tasks as register_ingest
from icedb_log.errors import InvalidRequest
from icedb_log.store_settings import StoreSettings
from icedb_log.units import MIB
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import register_tasks as register_merge
from icedb_service.main import run_main
from icedb_service.worker import WorkerService, run_worker


def open_engine(store: StoreSettings) -> LocalEngine:
    """Open the engine of a worker."""
    return LocalEngine(store.open().store, limits=choose_limits(memory_bytes=256 * MIB, thread_count=1))


def serve_ingest(settings: IngestSettings) -> int:
    """Serve the queue ``ingest``."""
    metrics = IngestMetrics()
    register = partial(register_ingest, settings=settings, metrics=metrics)
    engine = partial(open_engine, settings.store_settings)
    return run_worker(WorkerService("ingest", metrics, engine, register), settings)


def serve_merger(settings: MergerSettings) -> int:
    """Serve the queue ``merge``."""
    metrics = MergeMetrics()
    register = partial(register_merge, settings=settings, metrics=metrics)
    engine = partial(open_engine, settings.store_settings)
    return run_worker(WorkerService("merge", metrics, engine, register), settings)


def main() -> None:
    """Run the worker that the command line names."""
    which = sys.argv[1]
    if which == "ingest":
        run_main(IngestSettings, "ingest", serve_ingest)
    if which == "merger":
        run_main(MergerSettings, "merge", serve_merger)
    raise InvalidRequest(f"{which!r}: ingest or merger")


if __name__ == "__main__":
    main()
