"""The ingest worker and the merger as they are, but without Spark: units of work run in the worker's own process.

For short runs: a JVM takes longer to start than such a run lasts. Everything else is the services' own code, also what
a Spark task would run.

    python -m icedb_local.chaos.light_worker ingest|merger
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from icedb_engine.limits import EngineLimits, JobLimits
from icedb_engine.spark.spark_flush import SparkBatchWriter
from icedb_engine.spark.spark_merge import SparkMerger
from icedb_engine.spark.spark_runner import SparkRunner, read_answers, run_unit
from icedb_engine.units.work import UnitKind
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_tasks as register_ingest
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.store.stores import StoreSettings
from icedb_log.units import MIB
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import register_tasks as register_merge
from icedb_service.main import run_main
from icedb_service.worker import NoEngine, WorkerService, run_worker

MEMORY_BYTES = 256 * MIB


class InProcessRunner(SparkRunner):
    """Runs units one after the other, where it is called."""

    def __init__(self, store: StoreSettings, check_alive: Callable[[], None] | None = None) -> None:
        super().__init__(None, store, check_alive=check_alive)  # type: ignore[arg-type]  # no session: nothing asks for it
        self._check = check_alive

    def checking(self, check_alive: Callable[[], None] | None) -> "InProcessRunner":
        """Return a runner for one run."""
        return InProcessRunner(self.store, check_alive)

    def run_bodies(self, kind: UnitKind, bodies: Sequence[str], *, is_users: bool = False) -> list[str]:
        """Run units. Raises as the base class does."""
        del is_users
        rows: list[dict[str, Any]] = []
        for number, body in enumerate(bodies):
            if self._check is not None:
                self._check()
            outcome, answer = run_unit(kind, body, self.store)
            rows.append({"unit": number, "outcome": outcome, "body": answer})
        return read_answers(rows, range(len(bodies)))


class LightEngine(NoEngine):
    """What flushes and merges need; views, imports and changes of rows are not there."""

    def __init__(self, store: StoreSettings) -> None:
        limits = JobLimits(engine=EngineLimits(memory_bytes=MEMORY_BYTES, thread_count=1))
        self.writer = SparkBatchWriter(None, store, clock=SystemClock(), limits=limits)  # type: ignore[arg-type]
        self.merger = SparkMerger(None, store, clock=SystemClock(), limits=limits)  # type: ignore[arg-type]
        for one in (self.writer, self.merger):
            one._runner = InProcessRunner(store)  # noqa: SLF001 - the one thing that differs


def serve_ingest(settings: IngestSettings) -> int:
    """Serve the queue ``ingest``."""
    metrics = IngestMetrics()
    register = partial(register_ingest, settings=settings, metrics=metrics)
    engine = partial(LightEngine, settings.store_settings)
    return run_worker(WorkerService("ingest", metrics, engine, register), settings)


def serve_merger(settings: MergerSettings) -> int:
    """Serve the queue ``merge``."""
    metrics = MergeMetrics()
    register = partial(register_merge, settings=settings, metrics=metrics)
    engine = partial(LightEngine, settings.store_settings)
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
