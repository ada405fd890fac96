"""The protocol of ``import_jobs`` on Spark: footers and copies spread over tasks when there are many.

A few files are not worth a job: the driver reads their footers itself. Tasks open sources with the credentials and the
endpoint of the worker; the caller has no say in that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

import structlog
from icedb_log.clock import Clock
from icedb_log.ingest.import_jobs import CopyOutput, InspectedFile, InspectJob, InspectOutput
from icedb_log.keys import TablePaths
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB
from pyspark.sql import SparkSession

from icedb_engine.imports.import_unit import ImportUnit, ImportUnitResult, import_unit, open_source
from icedb_engine.limits import EngineLimits
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_watch import WatchRules
from icedb_engine.units.work_units import IMPORT_RESULTS, encode

DIRECT_FILES: Final = 64
"""Up to so many footers are read, or small files copied, without a Spark job."""
DIRECT_BYTES: Final = 64 * MIB
FOOTERS_PER_UNIT: Final = 250
COPIES_PER_UNIT: Final = 100
COPY_UNIT_BYTES: Final = 2048 * MIB

_log = structlog.get_logger(__name__)
_Item = TypeVar("_Item")


class SparkFileImporter:
    """A :class:`icedb_log.ingest.import_jobs.FileImporter` that runs on Spark.

    Args:
        spark: The session.
        store: How tasks reach the store of the table.
        clock: For durations in the log, and names of copies.
        source_s3: How tasks reach S3 sources if the table is not on S3.
        engine: Bounds of tasks.
        rules: How jobs are watched.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StoreSettings,
        *,
        clock: Clock,
        source_s3: S3Options | None = None,
        engine: EngineLimits | None = None,
        rules: WatchRules | None = None,
    ) -> None:
        # A directory has no use for it: its settings carry it to the tasks, where no plan or log shows a secret.
        self._store = store if store.s3 else StoreSettings(store.url, source_s3)
        self._runner = SparkRunner(spark, self._store, rules=rules)
        self._clock = clock
        self._engine = engine or EngineLimits()

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read the footers of a job's files. Raises Unavailable when a store or Spark did not answer."""
        started_ms = self._clock.monotonic_ms()
        units = [
            self._make_unit(replace(job, sources=sources))
            for sources in _cut([(source, 1) for source in job.sources], FOOTERS_PER_UNIT, FOOTERS_PER_UNIT)
        ]
        results = self._run(units, is_direct=len(job.sources) <= DIRECT_FILES)
        output = InspectOutput(
            tuple(file for result in results for file in result.inspected),
            tuple(refused for result in results for refused in result.refused),
        )
        _log.info(
            "footers read",
            table=job.paths.name,
            files=len(job.sources),
            refused=len(output.refused),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files, each to a fresh key. Not idempotent. Raises Unavailable when a store or Spark did not answer."""
        started_ms = self._clock.monotonic_ms()
        job = InspectJob(paths, TableConfig(name=paths.name), ())
        size_bytes = sum(file.source.size_bytes for file in files)
        units = [
            self._make_unit(job, part)
            for part in _cut([(file, file.source.size_bytes) for file in files], COPIES_PER_UNIT, COPY_UNIT_BYTES)
        ]
        results = self._run(units, is_direct=len(files) <= DIRECT_FILES and size_bytes <= DIRECT_BYTES)
        output = CopyOutput(
            tuple(placed for result in results for placed in result.placed),
            tuple(refused for result in results for refused in result.refused),
        )
        _log.info(
            "files copied",
            table=paths.name,
            files=len(output.files),
            size_bytes=sum(placed.size_bytes for placed in output.files),
            refused=len(output.refused),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output

    def _make_unit(self, job: InspectJob, inspected: tuple[InspectedFile, ...] = ()) -> ImportUnit:
        return ImportUnit(job, inspected, self._engine)

    def _run(self, units: Sequence[ImportUnit], *, is_direct: bool) -> list[ImportUnitResult]:
        if is_direct:
            store = self._store.open().store
            opener = open_source(self._store.s3)
            return [import_unit(unit, store, open_source=opener, clock=self._clock) for unit in units]
        results = self._runner.run("import", [encode(unit) for unit in units])
        return [IMPORT_RESULTS.validate_json(body) for body in results]


def _cut(items: Sequence[tuple[_Item, int]], max_count: int, max_size: int) -> list[tuple[_Item, ...]]:
    parts: list[tuple[_Item, ...]] = []
    part: list[_Item] = []
    part_size = 0
    for item, size in items:
        if part and (len(part) == max_count or part_size + size > max_size):
            parts.append(tuple(part))
            part, part_size = [], 0
        part.append(item)
        part_size += size
    return [*parts, tuple(part)] if part else parts
