"""Flush jobs on Spark. The driver cuts a job into units, runs them as tasks, and brings their results together.

A small flush is one unit in one task, which reads the batches and writes the files. A big one takes two jobs: parse
units read the batches and hand sorted blobs on; the driver settles the types of new columns, decides which batches
the commit takes, and deals the partitions out; write units make the files, one for each partition unless it is
larger than a file should be. The driver never sees a row.
"""

from dataclasses import replace

import structlog
from icedb_log.jobs import FlushJob, FlushOutput
from icedb_log.model import FileMarker

from icedb_engine.limits import JobLimits
from icedb_engine.reading.widening import make_proof, settle_types, unite_known
from icedb_engine.spark.spark_blobs import SparkBlobs, write_blobs
from icedb_engine.spark.spark_query import QueryRun
from icedb_engine.spark.spark_read import Batches, ReadUnit, UnitReader, bring_together
from icedb_engine.spark.spark_runner import SparkJobs, SparkRunner
from icedb_engine.units.flush_types import FlushUnitResult, UnitBlobs, count_prefix
from icedb_engine.units.work_units import FLUSH_RESULTS, split_batches
from icedb_engine.writing.part_files import require_parity

_log = structlog.get_logger(__name__)


class SparkBatchWriter(SparkJobs):
    """A :class:`icedb_log.jobs.BatchWriter` that runs on Spark."""

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Parse, check, partition, sort and upload the rows of a job's batches.

        Not idempotent: each call makes new files; after an error they are orphans (J5).

        Raises:
            SchemaConflict: A declared column has another type in the log.
            Unavailable: The store or the engine did not answer, took too long, or lost rows on the way.
        """
        started_ms = self._clock.monotonic_ms()
        kind = _FlushRun if job.config.insert_query is None else QueryRun
        run = kind(job, self._runner.checking(job.check_alive), self._limits)
        output = run.run()
        _log.info(
            "batches written",
            table=job.paths.name,
            batches=len(job.batches),
            units=run.unit_count,
            rejected=len(output.rejected),
            deferred=len(output.deferred),
            rows=output.row_count,
            files=len(output.files),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output


class _FlushRun:
    """One call of :meth:`SparkBatchWriter.write_batches`, for a table without an ``insert_query``."""

    def __init__(self, job: FlushJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        self._known = unite_known(job)
        self._reader = UnitReader(job, job.config, self._known, limits, proof=make_proof(job, runner.store))
        self._units: list[ReadUnit] = []
        self._deferred: set[str] = set()
        self.unit_count = 0

    def run(self) -> FlushOutput:
        units = split_batches(self._job.batches, self._limits)
        if len(units) == 1:
            return self._run_direct(units[0])
        with SparkBlobs(self._runner) as blobs:
            self._units = self._reader.read(units, blobs)
            self._defer_beyond(self._job.config.max_partitions_per_flush, blobs)
            files = write_blobs(
                self._job,
                [UnitBlobs(unit.number, unit.result.partitions, unit.result.blobs) for unit in self._units],
                blobs,
                columns=self._find_columns(),
                limits=self._limits,
            )
            self.unit_count = blobs.unit_count
        return self._collect(files)

    def _run_direct(self, batches: Batches) -> FlushOutput:
        result = self._flush(batches)
        while result.wishes:
            self._reader.settle_wishes([result])
            result = self._flush(batches)
        self.unit_count = 1
        self._reader.types = settle_types(self._reader.types, [result.new_kinds])
        self._units = [ReadUnit(0, batches, result)]
        # What the unit had no room for waits for the next commit, and so does what has too many partitions.
        self._deferred = {*result.deferred, *result.left}
        return self._collect(result.files)

    def _flush(self, batches: Batches) -> FlushUnitResult:
        (body,) = self._runner.run("flush", self._reader.encode_units([batches]))
        return FLUSH_RESULTS.validate_json(body)

    def _find_columns(self) -> dict[str, str]:
        """Return the columns of the accepted rows, with types: the schema's first, then the new ones."""
        found = {name for unit in self._units for name in unit.result.columns}
        return {name: sql_type for name, sql_type in self._reader.types.items() if name in found}

    def _defer_beyond(self, max_partitions: int, blobs: SparkBlobs) -> None:
        """Take the oldest batches that lie in so many partitions together, at least one; defer the others."""
        touched = {
            batch_id: {unit.result.partitions[place] for place in places}
            for unit in self._units
            for batch_id, places in unit.result.batch_partitions.items()
        }
        ordered = [batch.batch_id for batch in self._job.batches if batch.batch_id in touched]
        kept = set(ordered[: count_prefix([touched[batch_id] for batch_id in ordered], max_partitions)])
        self._deferred = set(ordered) - kept
        if not self._deferred:
            return
        cut = [unit for unit in self._units if not self._deferred.isdisjoint(unit.result.accepted)]
        self._units = [unit for unit in self._units if self._deferred.isdisjoint(unit.result.accepted)]
        for unit in cut:
            if kept.isdisjoint(unit.result.accepted):
                self._units.append(_without_rows(unit, self._deferred))
            else:
                # Its blobs mix rows of both kinds of batches: it reads the kept ones again. There is one such unit.
                out = self._deferred.union(unit.result.left)
                rest = tuple(batch for batch in unit.batches if batch.batch_id not in out)
                self._units += self._reader.parse([rest], blobs)

    def _collect(self, files: tuple[FileMarker, ...]) -> FlushOutput:
        results = [unit.result for unit in self._units]
        row_count = sum(result.row_count for result in results)
        require_parity(self._job.paths, read_count=row_count, files=files)
        return bring_together(
            self._job,
            results,
            files=files,
            schema={**self._known, **self._find_columns()},
            row_count=row_count,
            deferred=self._deferred,
            inexact=self._reader.proof.inexact,
        )


def _without_rows(unit: ReadUnit, deferred: set[str]) -> ReadUnit:
    """Return a unit all of whose rows are deferred; what it says about batches without rows stays."""
    result = replace(
        unit.result,
        columns=(),
        new_kinds={},
        accepted=tuple(batch_id for batch_id in unit.result.accepted if batch_id not in deferred),
        row_count=0,
        partitions=(),
        blobs=(),
        batch_partitions={},
    )
    return replace(unit, result=result)
