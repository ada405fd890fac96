"""The data path without Spark: flush, merge, change, import and feed with real Parquet files, in the test's process.

Units of work, their plans and their checks are those of the services, SQL of users included; only what Spark does
besides is left out: tasks run one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from icedb_engine.imports.import_unit import copy_unit, inspect_unit
from icedb_engine.limits import EngineLimits, JobLimits
from icedb_engine.spark.spark_feed import SparkViewFeeder
from icedb_engine.spark.spark_flush import SparkBatchWriter
from icedb_engine.spark.spark_merge import SparkMerger
from icedb_engine.spark.spark_runner import SparkJobs, SparkRunner, run_opened
from icedb_engine.units.work import CopyUnit, UnitKind
from icedb_log.clock import Clock
from icedb_log.ingest.import_jobs import CopyOutput, InspectedFile, InspectJob, InspectOutput
from icedb_log.jobs import CheckAlive
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.stores import StoreSettings
from icedb_log.units import MIB
from icedb_log.warehouse import Warehouse

LIMITS = JobLimits(engine=EngineLimits(memory_bytes=256 * MIB, thread_count=1))


@dataclass(frozen=True, slots=True)
class _OpenSettings(StoreSettings):
    """Settings of a store that is open already."""

    url: str = "file:///unused"
    store: Any = field(default=None, repr=False)

    def open(self) -> Warehouse:
        return Warehouse(self.store)


class NativeRunner(SparkRunner):
    """Runs units here, one after the other."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(cast(Any, None), _OpenSettings(store=store))
        self._objects = store
        self._clock = clock

    def checking(self, check_alive: CheckAlive | None) -> "NativeRunner":
        """Return itself: nothing runs beside it that could be stopped."""
        del check_alive
        return self

    def run_bodies(self, kind: UnitKind, bodies: Sequence[str], *, is_users: bool = False) -> list[str]:
        """Run units and return their results in the same order. Raises what a unit raises."""
        del is_users
        return [run_opened(kind, body, self._objects, clock=self._clock) for body in bodies]


class _NativeJobs(SparkJobs):
    """Runs jobs of one kind without a Spark session."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(cast(Any, None), _OpenSettings(store=store), clock=clock, limits=LIMITS)
        self._runner = NativeRunner(store, clock)


class NativeWriter(_NativeJobs, SparkBatchWriter):
    """A :class:`icedb_log.jobs.BatchWriter`, for small flushes."""


class NativeFeeder(_NativeJobs, SparkViewFeeder):
    """A :class:`icedb_log.feed.feed_jobs.ViewFeeder`."""


class NativeMerger(_NativeJobs, SparkMerger):
    """A :class:`icedb_log.jobs.GroupMerger`, and a :class:`icedb_log.jobs.RowChanger`."""


class NativeImporter:
    """A :class:`icedb_log.ingest.import_jobs.FileImporter`; sources lie in the store of the table."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read the footers of a job's files."""
        return inspect_unit(job, lambda _: self._store)

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files, each to a fresh key."""
        unit = CopyUnit(paths, files, LIMITS.engine)
        return copy_unit(unit, self._store, lambda _: self._store, clock=self._clock)
