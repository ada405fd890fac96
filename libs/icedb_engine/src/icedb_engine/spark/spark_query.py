"""Flushes of tables with an ``insert_query`` on Spark: a unit reads batches, runs the query over them, and writes.

The driver only settles what several units of one flush have in common: the types of new columns, where the oldest
batches win, and how many partitions the commit takes. It never sees a row.
"""

from collections.abc import Sequence
from dataclasses import replace

from icedb_log.jobs import FlushJob, FlushOutput, StagedBatch
from icedb_log.table.table_config import TableConfig

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.reading.widening import unite_known
from icedb_engine.spark.spark_read import Batches, bring_together
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.sql.checks import require_dialect
from icedb_engine.sql.columns import INSERT_QUERY
from icedb_engine.units.flush_types import FlushUnit, FlushUnitResult
from icedb_engine.units.query_unit import InsertUnit, QueryTarget, QueryUnitResult
from icedb_engine.units.work_units import QUERY_RESULTS, encode, split_batches
from icedb_engine.writing.part_files import require_parity


class QueryRun:
    """One call of :meth:`icedb_engine.spark.spark_flush.SparkBatchWriter.write_batches`, for a table with a query."""

    def __init__(self, job: FlushJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        self._known = unite_known(job)
        self._types = dict(self._known)
        self._made: list[QueryUnitResult] = []
        self._found: set[str] = set()
        self._deferred: set[str] = set()
        self.unit_count = 0

    def run(self) -> FlushOutput:
        """Read, query and write.

        Raises:
            SchemaConflict: The configuration has a query of another dialect.
            Unavailable: The store or Spark did not answer.
        """
        require_dialect(self._job.config, INSERT_QUERY)
        waiting = list(self._split())
        while waiting:
            waiting = self._take(waiting, self._run_units(waiting))
        return self._collect()

    def _split(self) -> tuple[Batches, ...]:
        limits = self._limits
        batch = replace(limits.batch, unit_target_bytes=max(1, limits.direct_bytes // 2))
        return split_batches(self._job.batches, replace(limits, batch=batch))

    def _run_units(self, units: Sequence[Batches]) -> list[QueryUnitResult]:
        self.unit_count += len(units)
        bodies = [encode(self._make_unit(batches, unit_count=len(units))) for batches in units]
        return [QUERY_RESULTS.validate_json(body) for body in self._runner.run("insert", bodies)]

    def _take(self, units: Sequence[Batches], results: Sequence[QueryUnitResult]) -> list[Batches]:
        """Take what fits together, oldest first; return units that have to run again, by types that are settled now."""
        again: list[Batches] = []
        partitions = {partition for made in self._made for partition in made.partitions}
        for batches, made in zip(units, results, strict=True):
            if any(self._types.get(name, kind) != kind for name, kind in made.columns.items()):
                again.append(batches)
                continue
            union = partitions.union(made.partitions)
            if partitions and len(union) > self._job.config.max_partitions_per_flush:
                self._deferred.update(batch.batch_id for batch in batches)
                continue
            partitions = union
            kept, waiting = _without_others_fault(made, batches)
            again += [waiting] if waiting else []
            self._made.append(kept)
            self._types.update(made.columns)
            self._found.update(made.columns)
        return again

    def _make_unit(self, batches: tuple[StagedBatch, ...], *, unit_count: int) -> InsertUnit:
        job, limits = self._job, self._limits
        engine = share_threads(limits.engine, unit_count)
        config = make_source_config(job.config)
        flush = FlushUnit(
            paths=job.paths,
            config=config,
            schema=dict(config.declared),
            batches=batches,
            commit_id=job.commit_id,
            time_ms=job.time_ms,
            limits=limits.batch,
            engine=replace(engine, memory_bytes=engine.memory_bytes // 2),  # the query and what it gives take the rest
            sizes=job.sizes,
        )
        target = QueryTarget(
            paths=job.paths,
            config=job.config,
            known=self._types,
            max_columns=limits.batch.table_columns,
            commit_id=job.commit_id,
            time_ms=job.time_ms,
            engine=engine,
        )
        return InsertUnit(flush, target)

    def _collect(self) -> FlushOutput:
        files = tuple(marker for made in self._made for marker in made.files)
        row_count = sum(made.row_count for made in self._made)
        require_parity(self._job.paths, read_count=row_count, files=files)
        results: list[FlushUnitResult] = [made.read for made in self._made if made.read is not None]
        left = {batch_id for result in results for batch_id in (*result.deferred, *result.left)}
        found = {name: sql_type for name, sql_type in self._types.items() if name in self._found}
        return bring_together(
            self._job,
            results,
            files=files,
            schema={**self._known, **found},
            row_count=row_count,
            deferred=self._deferred | left,
        )


def _without_others_fault(made: QueryUnitResult, batches: Batches) -> tuple[QueryUnitResult, Batches]:
    """Return a result, and batches that it rejects for types that a batch settled which the query has refused since.

    They are read once more without that one: it never holds up others.
    """
    read = made.read
    if read is None or not made.refused:
        return made, ()
    refused = {batches[place].batch_id for place in made.refused}
    waiting = {each.batch.batch_id for each in read.rejected} - refused
    rejected = tuple(each for each in read.rejected if each.batch.batch_id not in waiting)
    left = tuple(batch for batch in batches if batch.batch_id in waiting)
    return replace(made, read=replace(read, rejected=rejected)), left


def make_source_config(config: TableConfig) -> TableConfig:
    """Return what batches must fit before the query: its source columns, no partition, no order.

    It keeps the query, which does nothing there: without one there are no source columns, and no configuration.
    """
    return config.model_copy(
        update={
            "declared": dict(config.source),
            "times": {name: t for name, t in config.times.items() if config.source.get(name) == config.declared[name]},
            "partition": (),
            "sort": (),
            "evolution": "strict" if config.evolution == "strict" else "add_columns",
        }
    )
