"""The protocol of ``import_jobs`` on Spark: footers and copies spread over tasks when there are many.

A few files are not worth a job: the driver reads their footers itself. Tasks open sources with the credentials and the
endpoint of the worker; the caller has no say in that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import structlog
from icedb_log.clock import Clock
from icedb_log.ingest.import_jobs import CopyOutput, InspectedFile, InspectJob, InspectOutput
from icedb_log.keys import TablePaths
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_log.units import MIB
from pyspark.sql import SparkSession

from icedb_engine.limits import JobLimits
from icedb_engine.spark.spark_runner import SparkJobs, run_opened
from icedb_engine.spark.spark_watch import WatchRules
from icedb_engine.units.work import CopyUnit, decode_result, encode, pack

DIRECT_FILES: Final = 64
"""Up to so many footers are read, or small files copied, without a Spark job."""
DIRECT_BYTES: Final = 64 * MIB
FOOTERS_PER_UNIT: Final = 250
COPIES_PER_UNIT: Final = 100
COPY_UNIT_BYTES: Final = 2048 * MIB

_log = structlog.get_logger(__name__)


class SparkFileImporter(SparkJobs):
    """A :class:`icedb_log.ingest.import_jobs.FileImporter` that runs on Spark.

    Args:
        spark: The session.
        store: How tasks reach the store of the table.
        clock: For durations in the log, and names of copies.
        source_s3: How tasks reach S3 sources if the table is not on S3.
        limits: Bounds of tasks.
        rules: How jobs are watched.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StoreSettings,
        *,
        clock: Clock,
        source_s3: S3Options | None = None,
        limits: JobLimits | None = None,
        rules: WatchRules | None = None,
    ) -> None:
        # A directory has no use for it: its settings carry it to the tasks, where no plan or log shows a secret.
        store = store if store.s3 else StoreSettings(store.url, source_s3)
        super().__init__(spark, store, clock=clock, limits=limits, rules=rules)

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read the footers of a job's files. Raises Unavailable when a store or Spark did not answer."""
        started_ms = self._clock.monotonic_ms()
        parts = pack(job.sources, lambda _: 1, max_bytes=FOOTERS_PER_UNIT)
        units = [replace(job, sources=part) for part in parts]
        results: list[InspectOutput] = self._run("inspect", units, is_direct=len(job.sources) <= DIRECT_FILES)
        output = InspectOutput(
            tuple(file for result in results for file in result.files),
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
        size_bytes = sum(file.source.size_bytes for file in files)
        parts = pack(files, lambda file: file.source.size_bytes, max_bytes=COPY_UNIT_BYTES, max_count=COPIES_PER_UNIT)
        units = [CopyUnit(paths, part, self._limits.engine) for part in parts]
        is_direct = len(files) <= DIRECT_FILES and size_bytes <= DIRECT_BYTES
        results: list[CopyOutput] = self._run("copy", units, is_direct=is_direct)
        output = CopyOutput(
            tuple(placed for result in results for placed in result.files),
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

    def _run(self, kind: Literal["inspect", "copy"], units: Sequence[Any], *, is_direct: bool) -> list[Any]:
        if not is_direct:
            return self._runner.run(kind, units)
        store, source_s3 = self._runner.store.open().store, self._runner.store.s3
        bodies = [run_opened(kind, encode(unit), store, clock=self._clock, source_s3=source_s3) for unit in units]
        return [decode_result(kind, body) for body in bodies]
