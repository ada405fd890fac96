"""The two protocols of :mod:`icedb_log.jobs` on Spark: flush jobs and merge jobs as units of work.

The driver cuts a job into units, runs them as tasks, and brings their results together. It never sees a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from icedb_log.clock import Clock
from icedb_log.errors import SchemaConflict
from icedb_log.jobs import FlushJob, FlushOutput, MergedGroup, MergeJob, RejectedBatch, StagedBatch
from icedb_log.stores import StoreSettings
from pyspark.sql import SparkSession

from icedb_parts.flush_unit import FlushUnit, FlushUnitResult
from icedb_parts.json_types import Kind, SchemaBuilder, infer_type
from icedb_parts.limits import EngineLimits, FlushUnitLimits
from icedb_parts.merge_unit import MergeUnit
from icedb_parts.spark_runner import SparkRunner
from icedb_parts.work_units import FLUSH_RESULTS, MERGE_RESULTS, encode, split_batches

MAX_PARALLEL_ROUNDS: Final = 3
"""After so many rounds in which units disagreed about new columns, the rest runs one unit after the other."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The bounds of a job's units."""

    batch: FlushUnitLimits = field(default_factory=FlushUnitLimits)
    engine: EngineLimits = field(default_factory=EngineLimits)


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

        Not idempotent: each call makes new files; after an error they are orphans (J5). Units that disagreed
        about a new column run again with the type that was settled; what they had written is orphaned, too.

        Raises:
            SchemaConflict: A declared column has another type in the log.
            Unavailable: The store or the engine did not answer.
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
            rows=output.row_count,
            files=len(output.files),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output


class SparkGroupMerger:
    """A :class:`icedb_log.jobs.GroupMerger` that runs on Spark.

    Args:
        spark: The session.
        store: How tasks reach the store.
        clock: For durations in the log.
        limits: Bounds of tasks.
    """

    def __init__(
        self, spark: SparkSession, store: StoreSettings, *, clock: Clock, limits: JobLimits | None = None
    ) -> None:
        self._runner = SparkRunner(spark, store)
        self._clock = clock
        self._limits = limits or JobLimits()

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Merge every group of a job, the largest first, each in a task of its own.

        Not idempotent: each call makes new files; after an error they are orphans (J5).

        Raises:
            NotFound: An input is gone although it is live.
            SchemaConflict: An input has a column of another type than the table.
            CorruptLog: An input is not readable as Parquet.
            Unavailable: The store or the engine did not answer.
        """
        started_ms = self._clock.monotonic_ms()
        groups = sorted(job.groups, key=lambda group: -group.size_bytes)
        engine = _share_threads(self._limits.engine, len(groups))
        bodies = [
            encode(
                MergeUnit(
                    paths=job.paths,
                    config=job.config,
                    schema=dict(job.schema),
                    group=group,
                    commit_id=job.commit_id,
                    time_ms=job.time_ms,
                    engine=engine,
                )
            )
            for group in groups
        ]
        results = [MERGE_RESULTS.validate_json(body) for body in self._runner.run("merge", bodies)]
        _log.info(
            "groups merged",
            table=job.paths.name,
            groups=len(groups),
            inputs=sum(len(group.inputs) for group in groups),
            outputs=sum(len(result.outputs) for result in results),
            rows=sum(result.rows_read for result in results),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return tuple(
            MergedGroup(group, result.outputs, result.rows_read) for group, result in zip(groups, results, strict=True)
        )


class _FlushRun:
    """One call of :meth:`SparkBatchWriter.write_batches`."""

    def __init__(self, job: FlushJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        self._known = _unite_known(job)
        self._types = dict(self._known)
        self._results: list[FlushUnitResult] = []

    @property
    def unit_count(self) -> int:
        return len(self._results)

    def run(self) -> FlushOutput:
        pending = list(split_batches(self._job.batches, self._limits.batch))
        round_count = 0
        while pending:
            round_count += 1
            # One unit at a time cannot disagree with another: so this ends, whatever the batches hold.
            running = pending if round_count <= MAX_PARALLEL_ROUNDS else pending[:1]
            pending = self._run_round(running) + pending[len(running) :]
        return self._collect()

    def _run_round(self, units: Sequence[tuple[StagedBatch, ...]]) -> list[tuple[StagedBatch, ...]]:
        """Run units, settle the types of new columns, and return the units that have to run again, or still."""
        engine = _share_threads(self._limits.engine, len(units))
        bodies = [
            encode(
                FlushUnit(
                    paths=self._job.paths,
                    config=self._job.config,
                    schema=self._types,
                    batches=unit,
                    commit_id=self._job.commit_id,
                    time_ms=self._job.time_ms,
                    limits=self._limits.batch,
                    engine=engine,
                )
            )
            for unit in units
        ]
        results = [FLUSH_RESULTS.validate_json(body) for body in self._runner.run("flush", bodies)]
        self._types = settle_types(self._types, [result.new_kinds for result in results])
        again: list[tuple[StagedBatch, ...]] = []
        for unit, result in zip(units, results, strict=True):
            if any(self._types.get(name) != infer_type(Kind(kinds)) for name, kinds in result.new_kinds.items()):
                again.append(unit)
                continue
            self._results.append(result)
            deferred = tuple(batch for batch in unit if batch.batch_id in set(result.deferred))
            if deferred:
                again.append(deferred)
        return again

    def _collect(self) -> FlushOutput:
        found = [name for result in self._results for name in result.columns]
        reasons = {rejection.batch_id: rejection.reason for result in self._results for rejection in result.rejected}
        accepted = {batch_id for result in self._results for batch_id in result.accepted}
        missing = {batch_id for result in self._results for batch_id in result.missing}
        batches = self._job.batches
        return FlushOutput(
            files=tuple(marker for result in self._results for marker in result.files),
            schema={**self._known, **{name: self._types[name] for name in found}},
            accepted=tuple(batch for batch in batches if batch.batch_id in accepted),
            rejected=tuple(
                RejectedBatch(batch, reasons[batch.batch_id]) for batch in batches if batch.batch_id in reasons
            ),
            missing=tuple(batch for batch in batches if batch.batch_id in missing),
            row_count=sum(result.row_count for result in self._results),
        )


def settle_types(known: Mapping[str, str], found: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Return the types of all columns after several units found new ones, each on its own.

    The first unit wins a conflict, as the first batch does inside a unit; a later one that differs in type, or in
    the case of the name, has to run again with what is returned.

    Args:
        known: The types that the units were given.
        found: New columns and kinds of values of each unit, in the order of the units.
    """
    builder = SchemaBuilder(known)
    spelling = {name.lower(): name for name in known}
    for columns in found:
        for name, kinds in columns.items():
            if spelling.setdefault(name.lower(), name) == name and builder.find_clash(name, Kind(kinds)) is None:
                builder.add(name, Kind(kinds))
    return {**known, **{name: infer_type(kinds) or "" for name, kinds in builder.new_kinds.items()}}


def _unite_known(job: FlushJob) -> dict[str, str]:
    """Return the log's schema with the declared columns. Raises SchemaConflict."""
    spelling = {name.lower(): name for name in job.schema}
    for name, declared_type in job.config.declared.items():
        logged_name = spelling.get(name.lower(), name)
        logged_type = job.schema.get(logged_name, declared_type)
        if (logged_name, logged_type) != (name, declared_type):
            raise SchemaConflict(
                f"table {job.paths.name}: the configuration declares {name!r} as {declared_type}, but the log has "
                f"{logged_name!r} as {logged_type}: correct {job.paths.config_key}"
            )
    return {**job.schema, **job.config.declared}


def _share_threads(engine: EngineLimits, unit_count: int) -> EngineLimits:
    """Return the bounds of one of several units that run at once."""
    return replace(engine, thread_count=max(1, engine.thread_count // unit_count))
