"""A flush of a table with an ``insert_query``: rows are read, the query runs over them, its result is written.

The query sees the rows of all batches of the commit at once, as the view ``_rows``. If it fails on them, it runs over
half of the batches, and so on, until the batch that it cannot take stands alone and is rejected: one bad batch never
holds up the others. A query may drop rows and make rows, so rows in and rows out differ; what is accounted for is
that every row of an accepted batch reached the query, and that every row of its result is in a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.errors import InvalidRequest, SchemaConflict
from icedb_log.jobs import FlushJob, FlushOutput
from icedb_log.table.table_config import TableConfig

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.query.guarded_query import run_query
from icedb_engine.query.insert_query import QueryProblem, make_spark_schema, query_errors, rows_view
from icedb_engine.query.query_tasks import make_decode_task, make_encode_task
from icedb_engine.query.query_types import ROWS_VIEW, read_output_columns, store_column
from icedb_engine.query.user_sql import check_user_sql
from icedb_engine.reading.widening import make_proof, unite_known
from icedb_engine.spark.spark_blobs import BLOB_SCHEMA, SparkBlobs, write_blobs
from icedb_engine.spark.spark_read import Batches, ReadUnit, UnitReader, bring_together
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.units.flush_types import QueryPart, UnitBlobs
from icedb_engine.units.flush_unit import EncodeUnit
from icedb_engine.units.work_units import FLUSH_RESULTS, split_batches
from icedb_engine.writing.part_files import require_parity

MAX_QUERY_RUNS: Final = 64
"""Runs of a query in one flush while it looks for batches that it cannot take; the rest waits for the next flush."""


@dataclass(frozen=True, slots=True)
class _Part(QueryPart):
    """Some batches over which the query ran.

    Attributes:
        batches: Which.
        read: What their parse units answered.
        columns: Columns of the result, with the types that the table stores.
    """

    batches: Batches
    read: tuple[ReadUnit, ...]
    columns: Mapping[str, str]


class QueryRun:
    """One call of :meth:`icedb_engine.spark.spark_flush.SparkBatchWriter.write_batches`, for a table with a query."""

    def __init__(self, job: FlushJob, runner: SparkRunner, limits: JobLimits) -> None:
        self._job = job
        self._runner = runner
        self._limits = limits
        self._query = job.config.insert_query or ""
        self._known = unite_known(job)
        self._types = dict(self._known)
        self._parts: list[_Part] = []
        self._reasons: dict[str, str] = {}
        self._deferred: set[str] = set()
        self._run_count = 0
        self.unit_count = 0

    def run(self) -> FlushOutput:
        """Read, query and write.

        Raises:
            SchemaConflict: The configuration has a query that cannot be run at all.
            Unavailable: The store or Spark did not answer.
        """
        try:
            check_user_sql(self._query, view=ROWS_VIEW, what="insert_query")
        except InvalidRequest as error:
            raise SchemaConflict(f"{error}: correct {self._job.paths.config_key}") from error
        with SparkBlobs(self._runner) as blobs:
            self._take(blobs)
            files = write_blobs(
                self._job,
                [unit for part in self._parts for unit in part.units],
                blobs,
                columns=self._find_columns(),
                limits=self._limits,
            )
        return self._collect(files)

    def _take(self, blobs: SparkBlobs) -> None:
        """Run the query over all batches, or over ever smaller parts of them, oldest first."""
        stack = [self._job.batches]
        while stack:
            batches = stack.pop()
            halves = [batches[len(batches) // 2 :], batches[: len(batches) // 2]]
            if self._run_count == MAX_QUERY_RUNS:
                self._defer(batches)
                continue
            try:
                part = self._run_query(batches, blobs)
            except QueryProblem as problem:
                if len(batches) > 1:
                    stack += halves
                else:
                    self._reasons[batches[0].batch_id] = f"insert_query: {problem}"
                continue
            if self._has_room(part):
                self._parts.append(part)
                self._types.update(part.columns)
            elif len(batches) > 1:
                self._defer(halves[0], *stack)
                stack = [halves[1]]
            else:
                self._defer(batches, *stack)
                stack = []

    def _has_room(self, part: _Part) -> bool:
        """Whether the commit can take a part's partitions, too; a single batch goes alone if need be."""
        taken = {partition for each in self._parts for partition in each.partitions}
        if len(taken | part.partitions) <= self._job.config.max_partitions_per_flush or not part.partitions:
            return True
        return not taken and len(part.batches) == 1

    def _defer(self, *parts: Batches) -> None:
        self._deferred.update(batch.batch_id for batches in parts for batch in batches)

    def _run_query(self, batches: Batches, blobs: SparkBlobs) -> _Part:
        """Read batches and run the query over their rows.

        Raises:
            QueryProblem: It cannot be run on them.
            Unavailable: The store or Spark did not answer.
        """
        self._run_count += 1
        config = make_source_config(self._job.config)
        reader = UnitReader(
            self._job, config, dict(config.declared), self._limits, proof=make_proof(self._job, self._runner.store)
        )
        with SparkBlobs(self._runner) as parsed:
            read = tuple(reader.read(split_batches(batches, self._limits), parsed))
            self.unit_count += parsed.unit_count
            if not any(unit.result.row_count for unit in read):
                return _Part((), batches, read, {})
            found = {name for unit in read for name in unit.result.columns}
            types = {name: kind for name, kind in reader.types.items() if name in found or name in config.declared}
            rows = parsed.decode(make_decode_task(read, types), make_spark_schema(types))
            columns, units = self._encode(rows, blobs, task_count=len(read))
        return _Part(units, batches, read, columns)

    def _encode(self, rows: Any, blobs: SparkBlobs, *, task_count: int) -> tuple[dict[str, str], tuple[UnitBlobs, ...]]:
        spark: Any = self._runner.spark
        first = blobs.unit_count
        what = f"the insert_query of table {self._job.paths.name}"
        with rows_view(rows), query_errors(what), self._runner.watch(what):
            result = run_query(spark, self._query, view=ROWS_VIEW)
            try:
                outputs = read_output_columns(
                    result.schema,
                    self._job.config,
                    known=self._types,
                    max_columns=self._limits.batch.table_columns,
                    widens=True,
                )
                columns = {column.name: column.sql_type for column in outputs}
                engine = share_threads(self._limits.engine, task_count)
                task = make_encode_task(EncodeUnit(self._job.paths, self._job.config, columns, engine), first=first)
                stored = result.select(*(store_column(column) for column in outputs))
                bodies = blobs.keep_any(stored.mapInArrow(task, schema=BLOB_SCHEMA))
            except InvalidRequest as error:
                raise QueryProblem(str(error)) from error
        results = {number: FLUSH_RESULTS.validate_json(body) for number, body in bodies.items()}
        return columns, tuple(UnitBlobs(number, each.partitions, each.blobs) for number, each in results.items())

    def _find_columns(self) -> dict[str, str]:
        found = {name for part in self._parts for name in part.columns}
        return {name: sql_type for name, sql_type in self._types.items() if name in found}

    def _collect(self, files: Sequence[Any]) -> FlushOutput:
        row_count = sum(part.row_count for part in self._parts)
        require_parity(self._job.paths, read_count=row_count, files=files)
        results = [unit.result for part in self._parts for unit in part.read]
        return bring_together(
            self._job,
            results,
            files=files,
            schema={**self._known, **self._find_columns()},
            row_count=row_count,
            deferred=self._deferred,
            refused=self._reasons,
        )


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
