"""Flush jobs on Spark. The driver cuts a job into units, runs them as tasks, and brings their results together.

A small flush is one unit in one task, which reads the batches and writes the files. A big one takes two jobs: parse
units read the batches and hand sorted blobs on; the driver settles the types of new columns, decides which batches
the commit takes, and deals the partitions out; write units make the files, one for each partition unless it is
larger than a file should be. The driver never sees a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from icedb_log.clock import Clock
from icedb_log.jobs import FlushJob, FlushOutput, RejectedBatch, StagedBatch
from icedb_log.model import FileMarker
from icedb_log.stores import StoreSettings
from pyspark.sql import SparkSession

from icedb_parts.column_types import settle_types, unite_known
from icedb_parts.flush_plan import UnitBlobs, count_prefix, plan_writes
from icedb_parts.flush_types import FlushUnit, FlushUnitResult, WriteUnit
from icedb_parts.json_types import Kind, infer_type
from icedb_parts.limits import JobLimits, share_threads
from icedb_parts.part_layout import SPLIT_FACTOR, require_parity
from icedb_parts.spark_blobs import SparkBlobs
from icedb_parts.spark_runner import SparkRunner
from icedb_parts.work_units import FLUSH_RESULTS, WRITE_RESULTS, encode, split_batches

MAX_PARALLEL_ROUNDS: Final = 3
"""After so many rounds in which units disagreed about new columns, the rest runs one unit after the other."""

_log = structlog.get_logger(__name__)


class SparkBatchWriter:
    """A :class:`icedb_log.jobs.BatchWriter` that runs on Spark.

    Args:
        spark: The session.
        store: How tasks reach the store.
        clock: For durations in the log.
        limits: Bounds of batches and tasks.
    """

    def __init__(
        self, spark: SparkSession, store: StoreSettings, *, clock: Clock, limits: JobLimits | None = None
    ) -> None:
        self._runner = SparkRunner(spark, store)
        self._clock = clock
        self._limits = limits or JobLimits()

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Parse, check, partition, sort and upload the rows of a job's batches.

        Not idempotent: each call makes new files; after an error they are orphans (J5).

        Raises:
            SchemaConflict: A declared column has another type in the log.
            Unavailable: The store or the engine did not answer, or lost rows on the way.
        """
        started_ms = self._clock.monotonic_ms()
        run = _FlushRun(job, self._runner, self._limits)
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


@dataclass(frozen=True, slots=True)
class _ReadUnit:
    """A unit that has answered.

    Attributes:
        number: Its number among the units of the flush.
        batches: Its batches.
        result: Its answer.
    """

    number: int
    batches: tuple[StagedBatch, ...]
    result: FlushUnitResult


class _FlushRun:
    """One call of :meth:`SparkBatchWriter.write_batches`."""

    def __init__(self, job: FlushJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        self._known = unite_known(job)
        self._types = dict(self._known)
        self._units: list[_ReadUnit] = []
        self._deferred: set[str] = set()
        self.unit_count = 0

    def run(self) -> FlushOutput:
        units = split_batches(self._job.batches, self._limits)
        if len(units) == 1:
            return self._run_direct(units[0])
        with SparkBlobs(self._runner) as blobs:
            self._read(units, blobs)
            self._defer_beyond(self._job.config.max_partitions_per_flush, blobs)
            files = self._write(blobs)
            self.unit_count = blobs.unit_count
        return self._collect(files)

    def _run_direct(self, batches: tuple[StagedBatch, ...]) -> FlushOutput:
        (body,) = self._runner.run("flush", self._encode_units([batches]))
        result = FLUSH_RESULTS.validate_json(body)
        self.unit_count = 1
        self._types = settle_types(self._types, [result.new_kinds])
        self._units = [_ReadUnit(0, batches, result)]
        # What the unit had no room for waits for the next commit, and so does what has too many partitions.
        self._deferred = {*result.deferred, *result.left}
        return self._collect(result.files)

    def _encode_units(self, units: Sequence[tuple[StagedBatch, ...]]) -> list[str]:
        job, engine = self._job, share_threads(self._limits.engine, len(units))
        return [
            encode(
                FlushUnit(
                    paths=job.paths,
                    config=job.config,
                    schema=self._types,
                    batches=unit,
                    commit_id=job.commit_id,
                    time_ms=job.time_ms,
                    limits=self._limits.batch,
                    engine=engine,
                )
            )
            for unit in units
        ]

    def _read(self, units: Sequence[tuple[StagedBatch, ...]], blobs: SparkBlobs) -> None:
        """Run parse units until all of them agree about the types of new columns."""
        pending = list(units)
        round_count = 0
        while pending:
            round_count += 1
            # One unit at a time cannot disagree with another: so this ends, whatever the batches hold.
            running = pending if round_count <= MAX_PARALLEL_ROUNDS else pending[:1]
            pending = self._read_round(running, blobs) + pending[len(running) :]

    def _read_round(self, units: Sequence[tuple[StagedBatch, ...]], blobs: SparkBlobs) -> list[tuple[StagedBatch, ...]]:
        """Run units, settle the types of new columns, and return the units that have to run again, or still."""
        read = self._parse(units, blobs)
        self._types = settle_types(self._types, [unit.result.new_kinds for unit in read])
        again: list[tuple[StagedBatch, ...]] = []
        for unit in read:
            new_kinds = unit.result.new_kinds
            if any(self._types.get(name) != infer_type(Kind(kinds)) for name, kinds in new_kinds.items()):
                again.append(unit.batches)
                continue
            self._units.append(unit)
            left = tuple(batch for batch in unit.batches if batch.batch_id in set(unit.result.left))
            if left:
                again.append(left)
        return again

    def _parse(self, units: Sequence[tuple[StagedBatch, ...]], blobs: SparkBlobs) -> list[_ReadUnit]:
        first = blobs.unit_count
        bodies = blobs.parse(self._encode_units(units))
        return [
            _ReadUnit(number, unit, FLUSH_RESULTS.validate_json(body))
            for number, (unit, body) in enumerate(zip(units, bodies, strict=True), first)
        ]

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
                self._units += self._parse([rest], blobs)

    def _write(self, blobs: SparkBlobs) -> tuple[FileMarker, ...]:
        """Run the write units. Raises Unavailable, also if rows were lost on the way."""
        job = self._job
        plans = plan_writes(
            [UnitBlobs(unit.number, unit.result.partitions, unit.result.blobs) for unit in self._units],
            task_bytes=self._limits.write_task_bytes,
            piece_bytes=SPLIT_FACTOR * job.config.target_file_bytes,
        )
        if not plans:
            return ()
        found = {name for unit in self._units for name in unit.result.columns}
        engine = share_threads(self._limits.engine, len(plans))
        bodies = [
            encode(
                WriteUnit(
                    paths=job.paths,
                    config=job.config,
                    columns={name: sql_type for name, sql_type in self._types.items() if name in found},
                    partitions=plan.partitions,
                    blobs=plan.blobs,
                    commit_id=job.commit_id,
                    time_ms=job.time_ms,
                    engine=engine,
                )
            )
            for plan in plans
        ]
        places = [(blob.unit, blob.number, task) for task, plan in enumerate(plans) for blob in plan.blobs]
        results = [WRITE_RESULTS.validate_json(body) for body in blobs.write(bodies, places, limits=engine)]
        return tuple(marker for result in results for marker in result.files)

    def _collect(self, files: tuple[FileMarker, ...]) -> FlushOutput:
        results = [unit.result for unit in self._units]
        row_count = sum(result.row_count for result in results)
        require_parity(self._job.paths, read_count=row_count, files=files)
        found = dict.fromkeys(name for result in results for name in result.columns)
        reasons = {rejection.batch_id: rejection.reason for result in results for rejection in result.rejected}
        accepted = {batch_id for result in results for batch_id in result.accepted}
        missing = {batch_id for result in results for batch_id in result.missing}
        batches = self._job.batches
        return FlushOutput(
            files=files,
            schema={**self._known, **{name: sql_type for name, sql_type in self._types.items() if name in found}},
            accepted=tuple(batch for batch in batches if batch.batch_id in accepted),
            rejected=tuple(
                RejectedBatch(batch, reasons[batch.batch_id]) for batch in batches if batch.batch_id in reasons
            ),
            missing=tuple(batch for batch in batches if batch.batch_id in missing),
            row_count=row_count,
            deferred=tuple(batch for batch in batches if batch.batch_id in self._deferred),
        )


def _without_rows(unit: _ReadUnit, deferred: set[str]) -> _ReadUnit:
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
